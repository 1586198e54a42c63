"""Published start-up logs of real engines: read back to their recorded facts, and checked.

The bytes per token are from the models' shapes by hand: layers x KV heads on a rank x head size x 2
(K and V; 1 for an MLA latent) x bytes of an element.
"""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from engine_logs import read_log, stated

from kvtwin.sim.sizing.engine_log import check_log, first_disagreement

RECORDS = {
    record["id"]: record
    for record in tomllib.loads(
        (Path(__file__).parents[2] / "cases" / "startup_logs.toml").read_text(encoding="utf-8")
    )["log"]
}
# What a record calls a fact -> what it may be named here.
NAMES = {
    "total_gib": ("total_memory",),
    "weights_gib": ("weights",),
    "activation_peak_gib": ("activation_peak",),
    "non_torch_gib": ("non_torch",),
    "cuda_graph_gib": ("cuda_graphs",),
    "available_kv_gib": ("available_kv", "checked_kv"),
    "avail_mem_before_load_gb": ("free_before_load",),
    "avail_mem_after_load_gb": ("free_after_load",),
    "k_gb": ("k_size",),
    "v_gb": ("v_size",),
    "kv_gb": ("kv_size",),
    "available_gib": ("free_after_load",),
    "allocated_gib": ("kv_size",),
    "tokens_per_block": ("block_size",),
    "gpu_memory_utilization": ("memory_utilization",),
    "max_running_requests": ("max_num_seqs",),
    "context_len": ("max_model_len",),
    "num_gpu_blocks": ("num_gpu_blocks",),
    "num_tokens": ("num_tokens",),
    "max_concurrency": ("max_concurrency",),
    "concurrency_at": ("concurrency_at",),
    "estimated_max_model_len": ("estimated_max_model_len",),
}
# Facts of a record that are not in its lines: settings from a command line or prose, a product of
# the author, a line that was cut.
NOT_IN_THE_LINES = {
    "L01": (),
    "L12": ("gpu_memory_utilization", "activation_peak_gib", "non_torch_gib", "available_kv_gib"),
    "L18": ("gpu_memory_utilization", "weights_gib", "available_kv_gib"),
    "L20": ("num_tokens",),
    "L21": ("num_tokens",),
    "L50": ("tokens_per_block",),
}
SETTINGS = ("gpu_memory_utilization",)
# L08's lines round the utilization to 0.89.
ROUNDED = {("L08", "gpu_memory_utilization"): 0.005}
# Window layers in groups of equal length, of which the log has no remark about padding: the caller,
# who knows the model, must say that a request takes fewer blocks than its tokens need.
WINDOW_LAYERS = {"L66": "window layers"}
KV_BYTES_PER_TOKEN = {
    "L02": 40 * 10 * 128 * 2 * 2,  # Phi-4
    "L06": 36 * 8 * 128 * 2 * 2,  # Qwen3-4B
    "L07": 28 * 2 * 128 * 2 * 2,  # Qwen2.5-Math-1.5B
    "L08": 28 * 8 * 128 * 2 * 2,  # Llama-3.2-3B
    "L09": 28 * 8 * 128 * 2 * 2,
    "L10": 32 * 8 * 128 * 2 * 2,  # Llama-3.1-8B
    "L11": 32 * 8 * 128 * 2 * 2,
    "L27": 36 * 8 * 128 * 2 * 2,  # Qwen3-8B
    "L34": 48 * 4 * 128 * 2 * 2,  # Qwen3-Coder-30B-A3B, all layers, as that version counts them
    "L35": 16 * 8 * 64 * 2 * 2,  # Llama-3.2-1B
    "L36": 32 * 8 * 128 * 2 * 2,
    "L37": 64 * 2 * 128 * 2 * 2,  # QwQ-32B, 8 KV heads on 4 ranks
    "L39": 32 * 8 * 128 * 2 * 2,
    "L40": 32 * 8 * 128 * 2 * 2,
    "L42": 28 * 8 * 128 * 2 * 2,  # Qwen3-0.6B
    "L43": 28 * 8 * 128 * 2 * 2,
    "L44": 32 * 8 * 128 * 2 * 2,
    "L45": 24 * 2 * 64 * 2 * 2,  # Qwen2.5-0.5B
    "L46": 61 * (512 + 64) * 2,  # Kimi K2.5, MLA
    "L47": 32 * 8 * 128 * 2 * 1,  # Llama-3.1-8B, fp8
    "L48": 32 * 16 * 128 * 2 * 2,  # Llama-2-7B within LLaVA, 32 KV heads on 2 ranks
    "L52": 22 * 2 * 64 * 2 * 2,  # TinyLlama, 4 KV heads on 2 ranks
    "L53": 28 * 8 * 128 * 2 * 2,  # Qwen3-Reranker-0.6B
    "L54": 32 * 32 * 128 * 2 * 2,  # Llama-2-7B class
    "L55": 32 * 8 * 128 * 2 * 2,
    "L56": 32 * 8 * 128 * 2 * 2,
    "L57": 80 * 4 * 128 * 2 * 2,  # Llama-3.3-70B, 8 KV heads on 2 ranks
    "L58": 80 * 2 * 128 * 2 * 2,
    "L59": 28 * 4 * 128 * 2 * 2,  # Qwen2.5-7B
    "L60": 32 * 32 * 128 * 2 * 2,  # CodeLlama-7B
    # Windows of two kinds of layers in equal groups: a block holds one kind's layers.
    "L61": 21 * 8 * 256 * 2 * 2,  # Gemma-2-9B
    "L62": 23 * 16 * 128 * 2 * 2,  # Gemma-2-27B
    "L64": 12 * 4 * 64 * 2 * 2,  # gpt-oss-20b, 8 KV heads on 2 ranks
    "L65": 40 * 4 * 128 * 2 * 2,  # Mistral-Small-24B, 8 KV heads on 2 ranks
    "L67": 32 * 8 * 128 * 2 * 2,
    "L68": 80 * 2 * 128 * 2 * 2,
    "L69": 5 * 4 * 256 * 2 * 2,  # Gemma-3-4B, in groups of the five full layers
    "L70": 13 * 4 * 256 * 2 * 2,  # Gemma-2-2B
}


def lines_of(record: dict[str, Any]) -> str:
    return "".join(line + "\n" for line in record["lines"])


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_the_lines_of_a_record_state_its_facts(record: dict[str, Any], tmp_path: Path) -> None:
    facts = read_log(tmp_path, lines_of(record))
    assert facts.engine == record["engine"]
    found = stated(facts)
    absent = NOT_IN_THE_LINES.get(record["id"], ())
    num_compared = 0
    for key, value in (record | record["printed"]).items():
        if key not in NAMES or key in absent:
            continue
        seen = [found[name] for name in NAMES[key] if name in found]
        if not seen and (key in SETTINGS or not _printed(value, record)):
            continue
        tolerance = ROUNDED.get((record["id"], key), 0)
        assert seen, f"{key} = {value} was not read"
        assert min(abs(one - value) for one in seen) <= tolerance, (key, value, seen)
        num_compared += 1
    assert num_compared, "nothing of the record was compared"


def _printed(value: float, record: dict[str, Any]) -> bool:
    """Whether a number stands in the lines, with or without commas and final zeros."""
    text = lines_of(record).replace(",", "")
    return any(shown in text for shown in {str(value), f"{value:.2f}", f"{value:.4f}"})


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_real_logs_agree_with_themselves(record: dict[str, Any], tmp_path: Path) -> None:
    derived = WINDOW_LAYERS.get(record["id"], "")
    checks = check_log(read_log(tmp_path, lines_of(record)), derived=derived)
    assert first_disagreement(checks) is None, str(first_disagreement(checks))


@pytest.mark.parametrize("name", KV_BYTES_PER_TOKEN)
def test_real_logs_agree_with_the_shapes_of_their_models(name: str, tmp_path: Path) -> None:
    facts = read_log(tmp_path, lines_of(RECORDS[name]))
    checks = check_log(facts, KV_BYTES_PER_TOKEN[name])
    by_shape = [check for check in checks if "bytes per token" in check.what]
    assert by_shape
    assert first_disagreement(checks) is None, str(first_disagreement(checks))
    assert any(check.verdict == "agrees" for check in by_shape), [str(one) for one in by_shape]
    # Half the bytes, as fp8 KV would take, do not agree: the check can tell.
    halved = check_log(facts, KV_BYTES_PER_TOKEN[name] // 2)
    assert first_disagreement(halved) is not None


def test_a_rank_that_is_left_out_is_seen(tmp_path: Path) -> None:
    """8.11 GiB hold 180,900 tokens of 94 layers with one KV head of 128; the log says 178,880."""
    facts = read_log(tmp_path, lines_of(RECORDS["L23"]))
    first = first_disagreement(check_log(facts, 94 * 1 * 128 * 2 * 2))
    assert first is not None
    assert first.line_number == 2
    assert "178,880 tokens" in str(first)


def test_enough_records_are_checked() -> None:
    """Fifteen at the least, of all three engines."""
    engines = [RECORDS[name]["engine"] for name in KV_BYTES_PER_TOKEN]
    assert {engine: engines.count(engine) >= 3 for engine in set(engines)} == {
        "vllm": True,
        "sglang": True,
        "trtllm": True,
    }
