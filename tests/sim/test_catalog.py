"""The catalogue: every row's arithmetic, and how names are found."""

import csv
import statistics
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.sim.catalog import GpuSpec, find_gpu, find_model, gpus, models
from kvtwin.sim.checkpoint import quantize
from kvtwin.sim.model import ModelSpec
from kvtwin.sim.names import name_key, nearest
from kvtwin.sim.sizing.estimates import DRIVER_BYTES
from kvtwin.traces import UserError

CASES = Path(__file__).parents[1] / "cases"
FACTS = tomllib.loads((CASES / "models.toml").read_text())
GPU_MEMORY = tomllib.loads((CASES / "gpu_memory.toml").read_text())["gpu"]
CATALOG = Path(__file__).parents[2] / "sim" / "catalog.toml"
CONFIGS = {row["name"]: row["config"] for row in tomllib.loads(CATALOG.read_text())["models"]}

every_model = pytest.mark.parametrize("model", models(), ids=lambda model: model.name)


def test_the_catalogue_is_complete_and_says_where_each_row_is_from() -> None:
    assert (len(models()), len(gpus())) == (63, 25)
    for spec in (*models(), *gpus()):
        assert len(spec.source) > 10, spec.name
    for gpu in gpus():
        assert "inference-sim" in gpu.mfu_source or gpu.mfu_source.startswith("assumed"), gpu.name


@every_model
def test_kv_bytes_follow_from_the_shape(model: ModelSpec) -> None:
    """papers' formulas: 2 n_kv d l for K and V, (d_c + d_rope) l for latent attention."""
    shape = CONFIGS[model.name]
    num_heads = shape["num_attention_heads"]
    head_dim = shape.get("head_dim", shape["hidden_size"] // num_heads)
    elements = 2 * shape.get("num_key_value_heads", num_heads) * head_dim
    if model.name.startswith("DeepSeek"):
        elements = 512 + 64
    elements *= shape["num_hidden_layers"]
    assert model.kv_bytes_per_token("auto", 1) == 2 * elements
    assert model.kv_bytes_per_token("bfloat16", 1) == model.kv_bytes_per_token("float16", 1)
    assert model.kv_bytes_per_token("fp8", 1) == elements


@every_model
def test_parameters_are_those_that_others_count(model: ModelSpec) -> None:
    (fact,) = [fact for fact in FACTS["published"] if fact["model"] == model.name]
    assert model.num_params == fact["counted"]
    assert meets(model.num_params, fact["params"]), fact
    if "active" in fact:
        embedding = sum(part.num_params for part in model.weights if part.name == "embedding")
        left_out = embedding if fact.get("active_without_embedding") else 0
        active = model.num_active_params - left_out
        # Makers round these down (DeepSeek-V2-Lite's 2.45 to 2.4), so more is allowed than for totals.
        assert active == pytest.approx(number(fact["active"]), rel=0.03), fact
    else:
        assert model.num_active_params == model.num_params


def number(figure: str) -> float:
    return float(figure[:-1]) * {"M": 1e6, "B": 1e9}[figure[-1]]


def meets(num: int, figure: str) -> bool:
    """Whether `num` is within 1 % of a printed figure, or rounds to it."""
    printed = number(figure)
    half_a_digit = number("0." + "0" * len(figure[:-1].partition(".")[2]) + "5" + figure[-1])
    if "." not in figure:
        half_a_digit = number("0.5" + figure[-1])
    return abs(num - printed) <= max(0.01 * printed, half_a_digit)


@every_model
@given(data=st.data())
def test_ranks_together_hold_at_least_the_whole_cache(
    model: ModelSpec, data: st.DataObject
) -> None:
    ranks = data.draw(st.sampled_from([1, 2, 4, 8, 16]))
    try:
        model.check_tensor_parallel(ranks)
    except UserError:
        assert model.num_heads % ranks or model.num_kv_heads % ranks
        return
    whole = model.kv_bytes_per_token("auto", 1)
    together = ranks * model.kv_bytes_per_token("auto", ranks)
    kept_by_all = ranks if model.mla_latent_dim else max(1, ranks // model.num_kv_heads)
    assert together == whole * kept_by_all


def test_known_figures() -> None:
    """Hand-computed: 2 x 40 x 5120 x 2 B (also printed in the PagedAttention paper), and GQA."""
    assert find_model("opt-13b").kv_bytes_per_token("auto", 1) == 819_200
    llama = find_model("llama-3.1-70b")
    assert llama.kv_bytes_per_token("auto", 8) == 2 * 1 * 128 * 80 * 2
    assert llama.kv_bytes_per_token("auto", 16) == 2 * 1 * 128 * 80 * 2  # one head, twice
    assert find_model("deepseek-v3").kv_bytes_per_token("auto", 8) == 70_272


def test_weights_are_what_is_shipped() -> None:
    assert find_model("opt-13b").weight_bytes == 25_706_946_560
    # The gpt-oss model card's checkpoints, Table 1, in GiB.
    assert find_model("gpt-oss-120b").weight_bytes / 2**30 == pytest.approx(60.8, abs=0.05)
    assert find_model("gpt-oss-20b").weight_bytes / 2**30 == pytest.approx(12.8, abs=0.05)
    deepseek = find_model("deepseek-v3")
    assert 671e9 < deepseek.weight_bytes < 690e9
    assert deepseek.weight_bytes > deepseek.num_params  # scales, and what keeps 16 bits


@pytest.mark.parametrize("fact", FACTS["checkpoints"], ids=lambda fact: fact["model"])
def test_weights_are_those_of_the_published_files(fact: dict[str, Any]) -> None:
    model = find_model(fact["model"])
    if "quantization" in fact:
        model = quantize(model, fact["quantization"])
    assert model.weight_bytes == fact["total_size"]


def test_windows_are_facts_and_are_not_credited() -> None:
    gemma, llama = find_model("gemma-3-27b"), find_model("llama-3.1-8b")
    assert gemma.kv_bytes_per_token("auto", 1) == 2 * 16 * 128 * 62 * 2
    assert "52 of the 62 layers" in gemma.window_note
    assert llama.window_note == ""


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("opt-13b", "OPT-13B"),
        ("opt-1.3b", "OPT-1.3B"),
        ("facebook/opt-13b", "OPT-13B"),
        ("OPT 13B", "OPT-13B"),
        ("llama_3.1_8b", "Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3.1-8B", "Llama-3.1-8B"),
        ("Qwen/Qwen3-30B", "Qwen3-30B-A3B"),
        ("Phi-4", "Phi-4"),
        ("DeepSeek-V2", "DeepSeek-V2"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
    ],
)
def test_models_are_found_as_people_write_them(typed: str, name: str) -> None:
    assert find_model(typed).name == name


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("a100-40gb", "A100-40GB-SXM"),
        ("A100_80GB", "A100-80GB-SXM"),
        ("a100-80gb-pcie", "A100-80GB-PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB-PCIe"),
        ("h100", "H100-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("h100_pcie", "H100-PCIe"),
        ("H100 NVL", "H100-NVL"),
        ("h200", "H200-SXM"),
        ("h20", "H20"),
        ("b200", "B200-SXM"),
        ("b300", "B300-SXM"),
        ("l4", "L4"),
        ("l40", "L40"),
        ("l40s", "L40S"),
        ("a10", "A10"),
        ("a10g", "A10G"),
        ("t4", "T4"),
        ("v100-16gb", "V100-16GB-SXM"),
        ("Tesla V100-SXM2-32GB", "V100-32GB-SXM"),
        ("3090", "RTX-3090"),
        ("4090", "RTX-4090"),
        ("GeForce RTX 5090", "RTX-5090"),
        ("a6000", "RTX-A6000"),
        ("RTX 6000 Ada", "RTX-6000-Ada"),
    ],
)
def test_gpus_are_found_as_people_write_them(typed: str, name: str) -> None:
    assert find_gpu(typed).name == name


def spellings(spec: ModelSpec | GpuSpec) -> tuple[str, ...]:
    return (spec.name, *spec.aliases)


def test_every_spelling_of_a_row_finds_that_row_and_no_other() -> None:
    for find, specs in ((find_model, models()), (find_gpu, gpus())):
        keys = [name_key(name) for spec in specs for name in spellings(spec)]
        assert len(set(keys)) == len(keys), "two spellings mean the same"
        for spec in specs:
            for name in spellings(spec):
                assert find(name.upper().replace("-", " ")).name == spec.name


def test_an_ambiguous_name_is_refused_with_all_that_it_may_be() -> None:
    of_a100 = "A100-40GB-SXM, A100-80GB-SXM, A100-40GB-PCIe, A100-80GB-PCIe;"
    with pytest.raises(UserError, match=f"a100 is ambiguous: it may be {of_a100}"):
        find_gpu("a100")
    with pytest.raises(
        UserError, match="v100 is ambiguous: it may be V100-16GB-SXM, V100-32GB-SXM"
    ):
        find_gpu("v100")
    with pytest.raises(UserError, match="OPT-13B, OPT-30B, OPT-66B, OPT-175B"):
        find_model("opt")


def test_a_wrong_name_is_refused_with_the_nearest_and_all_names() -> None:
    with pytest.raises(UserError) as refused:
        find_model("opt-13c")
    assert "did you mean OPT-13B?" in str(refused.value)
    assert all(model.name in str(refused.value) for model in models())
    assert "--gpu-memory-gib" not in str(refused.value)
    with pytest.raises(UserError, match="--gpu h1000 is not in the catalogue") as unknown:
        find_gpu("h1000")
    assert str(unknown.value).endswith("; for others `kvtwin size` takes --gpu-memory-gib")


@pytest.mark.parametrize("typed", ["opt-1", "", "/", "-", "llama-3.1-8"])
def test_a_piece_of_a_word_is_no_name(typed: str) -> None:
    with pytest.raises(UserError):
        find_model(typed)


def test_nearest_finds_nothing_where_nothing_is_like_it() -> None:
    assert nearest("zzzz", ["block_size", "seed"]) is None
    assert nearest("block-sise", ["block_size", "seed"]) == "block_size"


def test_ranks_must_divide_the_heads() -> None:
    with pytest.raises(UserError, match="must divide the 40 attention heads of OPT-13B"):
        find_model("opt-13b").check_tensor_parallel(3)
    with pytest.raises(UserError, match="multiple of the 10 KV heads of Phi-4"):
        find_model("phi-4").check_tensor_parallel(4)


def gib(printed: str) -> float:
    figure, unit = printed.split()
    return float(figure) / {"MiB": 1024, "GiB": 1}[unit]


@pytest.mark.parametrize("fact", GPU_MEMORY, ids=lambda fact: fact["name"])
def test_cudas_total_is_the_median_of_what_public_lines_print(fact: dict[str, Any]) -> None:
    gpu = find_gpu(fact["name"])
    printed = [gib(line["printed"]) for line in fact["lines"]]
    assert gpu.cuda_memory_bytes is not None
    assert gpu.cuda_memory_bytes / 2**30 == pytest.approx(statistics.median(printed), abs=0.005)
    said = gpu.cuda_memory_source
    assert str(len(printed)) in said or (len(printed) == 1 and "one public line" in said)
    assert f"{min(printed):.2f}" in said
    assert f"{max(printed):.2f}" in said
    assert len(printed) < 3 or max(printed) - min(printed) < 0.35, "another GPU among them"


def test_cuda_reports_less_than_the_driver_and_the_estimate_is_the_median_of_how_much() -> None:
    assert [fact["name"] for fact in GPU_MEMORY] == [gpu.name for gpu in gpus()]
    kept = {
        gpu.name: (gpu.memory_bytes - gpu.cuda_memory_bytes) / 2**30
        for gpu in gpus()
        if gpu.cuda_memory_bytes is not None
    }
    assert kept.pop("MI300X") == 0  # ROCm reports all of it
    assert len(kept) == 24
    assert min(kept.values()) == pytest.approx(0.23, abs=0.005) == kept["V100-16GB-SXM"]
    assert max(kept.values()) == pytest.approx(0.90, abs=0.005) == kept["B300-SXM"]
    estimated = DRIVER_BYTES / 2**30
    assert estimated == pytest.approx(statistics.median(kept.values()), abs=0.01)


def test_rows_agree_with_the_reference_tables(shared_dir) -> None:
    with (shared_dir / "reference" / "models.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        model = find_model(row["model"])
        assert model.name == row["model"]
        assert model.kv_bytes_per_token("auto", 1) == int(row["kv_bytes_per_token_bf16"])
        assert model.kv_bytes_per_token("fp8", 1) == int(row["kv_bytes_per_token_fp8"])
        assert model.num_window_layers == int(row["window_layers"])
        # The table leaves out the norms of Q and K, and rounds DeepSeek's.
        assert 2 * model.num_params == pytest.approx(int(row["weights_bytes_bf16"]), rel=2e-3)
        windows = sum(
            2 * layer.num_kv_heads * (layer.key_dim + layer.value_dim) * layer.window
            for layer in model.attention_layers
        )
        if row["window"] and row["kv_window_bytes_cap_bf16"] != "0":
            assert windows == int(row["kv_window_bytes_cap_bf16"])
    with (shared_dir / "reference" / "gpus.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            gpu = find_gpu(row["gpu"])
            assert gpu.memory_bytes == int(row["memory_total_bytes"])
            assert gpu.hbm_bytes_per_s == 10**9 * int(row["hbm_bandwidth_gb_s"])
            assert gpu.bf16_flops_per_s == pytest.approx(1e12 * float(row["bf16_dense_tflops"]))
            assert gpu.nvlink_bytes_per_s == 10**9 * int(row["nvlink_unidir_gb_s"])
