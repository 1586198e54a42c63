"""Pool size: vLLM's arithmetic, its precedence, its refusals, and how near the estimates come."""

import dataclasses
import math
import re
import tomllib
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvtwin.sim.catalog import find_gpu, find_model, gpus, models
from kvtwin.sim.config import RunConfig
from kvtwin.sim.pool import size_pool
from kvtwin.sim.sizing.estimates import (
    CUDA_GRAPH_BYTES,
    NON_TORCH_BYTES,
    NON_TORCH_BYTES_OF_RANKS,
    activation_bytes_per_token,
    activation_peak_bytes,
)
from kvtwin.traces import UserError


def config(**fields: Any) -> RunConfig:
    return RunConfig(**({"model": "opt-13b", "gpu": "a100-40gb"} | fields))


def peak_bytes(config: RunConfig) -> int:
    return activation_peak_bytes(
        find_model(config.model),
        config.tensor_parallel_size,
        num_batched_tokens=config.max_num_batched_tokens,
        num_sampled_sequences=config.max_num_seqs,
    )


def test_twelve_gib_of_opt_13b_are_983_blocks() -> None:
    """PagedAttention paper, Table 1: 12 GB, in GiB, and 15.7K slots (12 GiB / 819,200 B)."""
    pool = size_pool(config(kv_cache_memory_bytes=12 * 2**30))
    assert (pool.num_blocks, pool.num_slots) == (983, 15_728)
    assert pool.kv_bytes_per_token == 819_200
    assert pool.pool_bytes == 983 * 16 * 819_200
    assert pool.terms[-1][:2] == ("unused_tail", pool.pool_bytes - 12 * 2**30)
    pinned = size_pool(config(num_gpu_blocks_override=983))
    assert (pinned.num_slots, pinned.pool_bytes) == (pool.num_slots, pool.pool_bytes)


def test_utilization_term_by_term() -> None:
    """Hand-computed: ceil(0.92 x 42,473,619,456) = 39,075,729,900; weights 25,706,946,560.

    Layers: 8192 x 2 x (3 x 5120 + 3 x 20480) = 1,258,291,200, more than sampling takes
    (256 x 50,272 x 41 = 527,654,912). 0.61 GiB = 654,982,512, 0.35 GiB = 375,809,638. Left:
    11,079,699,990 bytes, and a block has 13,107,200.
    """
    pool = size_pool(config())
    assert [(name, num_bytes) for name, num_bytes, _ in pool.terms] == [
        ("gpu_memory", 42_949_672_960),
        ("driver", 42_473_619_456 - 42_949_672_960),
        ("held_back", 39_075_729_900 - 42_473_619_456),
        ("weights", -25_706_946_560),
        ("activations", -1_258_291_200),
        ("cuda_graphs", -654_982_512),
        ("non_torch", -375_809_638),
        ("unused_tail", 845 * 13_107_200 - 11_079_699_990),
    ]
    assert pool.num_blocks == 845
    assert all(source for _, _, source in pool.terms)


def test_the_override_goes_before_bytes_and_bytes_before_utilization() -> None:
    both = size_pool(config(num_gpu_blocks_override=10, kv_cache_memory_bytes=2**30))
    assert both.num_blocks == 10
    assert "--kv-cache-memory-bytes has no effect" in both.notes[0]
    of_bytes = size_pool(config(kv_cache_memory_bytes=2**30, gpu_memory_utilization=0.5))
    assert of_bytes.num_blocks == 2**30 // 13_107_200
    assert of_bytes.num_slots == 81 * 16
    assert of_bytes.notes == (
        "max_model_len is 2,048 tokens, for which vLLM wants 128 blocks beside the null block, of 81: vLLM would not "
        "start; lower --max-model-len to what your requests need",
    )
    enough = size_pool(config(num_gpu_blocks_override=129))
    assert enough.notes == ()  # exactly max_model_len, and the null block
    assert size_pool(config(num_gpu_blocks_override=128)).notes


@given(
    model=st.sampled_from(models()),
    gpu=st.sampled_from(gpus()),
    ranks=st.sampled_from([1, 2, 4, 8]),
    block_size=st.integers(1, 256),
    utilization=st.floats(0.01, 1.0),
    dtype=st.sampled_from(["auto", "fp8"]),
)
def test_a_pool_is_whole_blocks_of_what_is_left(
    model: Any, gpu: Any, ranks: int, block_size: int, utilization: float, dtype: str
) -> None:
    assume(
        model.num_heads % ranks == 0 and (model.num_kv_heads % ranks == 0 or model.mla_latent_dim)
    )
    made = config(
        model=model.name,
        gpu=gpu.name,
        tensor_parallel_size=ranks,
        block_size=block_size,
        gpu_memory_utilization=utilization,
        kv_cache_dtype=dtype,
    )
    left = (
        math.ceil(gpu.cuda_memory_bytes * utilization)
        - model.weight_bytes_per_rank(ranks)
        - peak_bytes(made)
        - CUDA_GRAPH_BYTES
        - (NON_TORCH_BYTES if ranks == 1 else NON_TORCH_BYTES_OF_RANKS)
    )
    block_bytes = block_size * model.kv_bytes_per_token(dtype, ranks)
    if left < block_bytes:
        with pytest.raises(UserError, match="no room for KV"):
            size_pool(made)
        return
    pool = size_pool(made)
    assert 0 <= left - pool.pool_bytes < block_bytes
    assert pool.num_slots == pool.num_blocks * block_size
    assert pool.pool_bytes == pool.num_slots * model.kv_bytes_per_token(dtype, ranks)
    assert pool.max_model_len == model.max_model_len
    noted = any(note.startswith(model.window_note) for note in pool.notes if model.window_note)
    assert noted == bool(model.sliding_window)


def test_terms_that_do_not_add_up_are_a_bug() -> None:
    pool = size_pool(config())
    with pytest.raises(AssertionError):
        dataclasses.replace(pool, terms=pool.terms[:-1])
    with pytest.raises(AssertionError):
        dataclasses.replace(pool, num_slots=pool.num_slots + 1)


def test_max_model_len_is_the_models_unless_given() -> None:
    assert size_pool(config()).max_model_len == 2048
    assert size_pool(config(max_model_len=512)).max_model_len == 512


def test_no_room_is_refused_with_every_number() -> None:
    with pytest.raises(UserError) as refused:
        size_pool(config(model="llama-3.1-70b", gpu="a100-80gb"))
    said = str(refused.value)
    assert "+85.90 (gpu_memory) -0.73 (driver) -6.81 (held_back) -141.11 (weights)" in said
    assert "raise --tensor-parallel-size" in said
    assert size_pool(
        config(model="llama-3.1-70b", gpu="a100-80gb", tensor_parallel_size=4)
    ).num_blocks


def test_bytes_below_one_block_are_refused_and_one_block_is_enough() -> None:
    with pytest.raises(UserError, match=r"raise --kv-cache-memory-bytes$"):
        size_pool(config(kv_cache_memory_bytes=13_107_199))
    assert size_pool(config(kv_cache_memory_bytes=13_107_200)).num_slots == 16


def test_weights_that_are_not_16_bits_say_so() -> None:
    pool = size_pool(config(model="gpt-oss-120b", gpu="h100"))
    sources = {name: source for name, _, source in pool.terms}
    assert re.search(r"all of 65\.\d\d GB", sources["weights"])  # in 16 bits it would be 234
    assert any("keep each layer's KV in full" in note for note in pool.notes)


def test_activations_per_token() -> None:
    """2 x (3 x 4096 + 3 x 14336) = 110,592 B; only the feed-forward's part is split over ranks."""
    llama = find_model("llama-3.1-8b")
    assert activation_bytes_per_token(llama, 1) == 110_592
    assert activation_bytes_per_token(llama, 4) == 2 * 3 * 4096 + 2 * 3 * 14336 // 4
    mixtral = find_model("mixtral-8x7b")  # two experts of 14336 a token
    assert activation_bytes_per_token(mixtral, 1) == 2 * (3 * 4096 + 3 * 2 * 14336)


@pytest.mark.parametrize(
    ("model", "ranks", "num_seqs", "num_batched_tokens", "printed_gib", "tolerance"),
    [
        # vLLM 0.19 on H100s (llm-d-incubation/llm-d-planner accuracy/results): sampling decides.
        ("llama-3.1-8b", 1, 1024, 8192, 1.89, 0.02),
        ("qwen2.5-7b", 1, 1024, 8192, 2.21, 0.02),
        ("llama-3.3-70b", 2, 1024, 8192, 1.96, 0.05),
        ("gemma-2-27b", 1, 1024, 8192, 3.66, 0.02),
        # A 24 GB card: torch peaks of 17.06 and 17.98 GiB, weights of 14.96 GiB within: layers do.
        ("llama-3.1-8b", 1, 256, 20_000, 17.06 - 14.96, 0.03),
        ("llama-3.1-8b", 1, 256, 29_000, 17.98 - 14.96, 0.03),
    ],
)
def test_the_estimate_is_near_what_vllm_printed(
    model: str,
    ranks: int,
    num_seqs: int,
    num_batched_tokens: int,
    printed_gib: float,
    tolerance: float,
) -> None:
    made = config(
        model=model,
        gpu="h100",
        tensor_parallel_size=ranks,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=num_batched_tokens,
    )
    assert peak_bytes(made) / 2**30 == pytest.approx(printed_gib, rel=tolerance)


def test_the_pool_is_near_what_vllm_sized_for_llama_2_7b() -> None:
    """vllm-project/vllm#2031: 7,351 blocks on an A100-80GB at 0.9; its steps held 4,096 tokens."""
    made = config(
        model="llama-2-7b",
        gpu="a100-80gb",
        gpu_memory_utilization=0.9,
        max_num_batched_tokens=4096,
    )
    assert size_pool(made).num_blocks == pytest.approx(7351, rel=0.03)


def test_published_questions_are_answered(shared_dir) -> None:
    with (shared_dir / "cases" / "sizing.toml").open("rb") as file:
        cases = {case["id"]: case for case in tomllib.load(file)["case"]}
    seventy = size_pool(
        config(
            model=cases["C02"]["model"],
            gpu="h200",
            tensor_parallel_size=1,
            num_gpu_blocks_override=cases["C02"]["num_gpu_blocks"],
        )
    )
    assert seventy.num_slots == cases["C02"]["answer"]["pool_tokens"]
    assert seventy.pool_bytes / 2**30 == pytest.approx(cases["C02"]["answer"]["pool_gib"], abs=0.01)
    case = cases["C04"]
    llama = find_model(case["model"])
    for run in case["runs"]:
        made = config(
            model=llama.name,
            gpu="l4",
            max_num_batched_tokens=run["max_model_len"],
            max_num_seqs=256,
        )
        left = case["total_gib"] * case["gpu_memory_utilization"] - case["non_torch_gib"]
        left -= (llama.weight_bytes + peak_bytes(made)) / 2**30
        blocks = left * 2**30 // (16 * llama.kv_bytes_per_token("auto", 1))
        assert blocks == pytest.approx(run["num_gpu_blocks"], rel=0.02)
    shape = find_model(cases["C05"]["model"]).kv_bytes_per_token("auto", 1)
    assert shape == cases["C05"]["answer"]["kv_bytes_per_token_all_layers"]
    pool = size_pool(config(model="qwen3-30b-a3b", gpu="h100", kv_cache_memory_bytes=2 * 2**30))
    assert pool.kv_bytes_per_token == cases["C09"]["answer"]["kv_bytes_per_token"]
    assert cases["C09"]["answer"]["tokens_at_2_gib"] - pool.num_slots in range(16)


def test_gpu_memory_is_what_the_driver_reports() -> None:
    assert find_gpu("a100-40gb").memory_bytes == 40_960 * 2**20
