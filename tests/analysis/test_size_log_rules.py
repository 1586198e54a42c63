"""What versions of engines mean by the figures of their logs, and what a log leaves open."""

from pathlib import Path
from typing import Any

import pytest
from size_command import GIB, facts, refused, terms_of

CONFIG = (
    "INFO [core.py:58] Initializing a V1 LLM engine (v{version}) with config: "
    "model='meta-llama/Llama-3.1-8B', speculative_config=None, max_seq_len=8192, "
    "tensor_parallel_size=1, pipeline_parallel_size=1, quantization={quantization}, "
    "enforce_eager=False, kv_cache_dtype=auto, seed=0\n"
)
WEIGHTS = "INFO [gpu_model_runner.py:4820] Model loading took {gib} GiB memory and 4.5 seconds\n"
GRAPHS = "INFO [gpu_model_runner.py:5955] Estimated CUDA graph memory: 2.00 GiB total\n"
AVAILABLE = "INFO [gpu_worker.py:436] Available KV cache memory: {gib} GiB\n"
H100_CUDA_GIB = 79.18
USAGE = (
    "DEBUG [gpu_worker.py:661] Free memory on device (78.68/79.19 GiB) on startup. Desired GPU memory "
    "utilization is (0.9, 71.27 GiB). Actual usage is 14.99 GiB for weight, 1.89 GiB for peak "
    "activation, 0.25 GiB for non-torch memory, and 2.00 GiB for CUDAGraph memory. Replace "
    "gpu_memory_utilization config with `--kv-cache-memory=1` (0.0 GiB) to fit into requested memory. "
    "Current kv cache memory in use is {kv} GiB.\n"
)


def sized(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, *flags: str
) -> dict[str, Any]:
    log = tmp_path / "start.log"
    log.write_text(text)
    return facts(capsys, "--engine-log", str(log), *flags)


def config(version: str = "0.32.0", quantization: str = "None") -> str:
    return CONFIG.format(version=version, quantization=quantization)


@pytest.mark.parametrize(("version", "taken_off"), [("0.19.1", 0), ("0.20.0", 0), ("0.21.0", 2)])
def test_the_graphs_that_old_versions_estimate_are_not_taken_off(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, version: str, taken_off: int
) -> None:
    text = config(version) + WEIGHTS.format(gib=15) + GRAPHS
    found = terms_of(sized(capsys, tmp_path, text, "--gpu", "h100"))
    assert found["cuda_graphs"]["num_bytes"] == -taken_off * GIB


def test_leaving_eager_mode_estimates_the_graphs_that_the_log_knows_nothing_of(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = config().replace("enforce_eager=False", "enforce_eager=True") + WEIGHTS.format(gib=15)
    eager = terms_of(sized(capsys, tmp_path, text, "--gpu", "h100"))
    graphs = terms_of(sized(capsys, tmp_path, text, "--gpu", "h100", "--no-enforce-eager"))
    assert eager["cuda_graphs"]["num_bytes"] == 0
    assert graphs["cuda_graphs"]["num_bytes"] < 0


@pytest.mark.parametrize(
    ("kv_gib", "taken_off"),
    [("54.14", 0), ("53.60", 0), ("52.70", 2), ("52.14", 2)],  # 71.27 - 14.99 - 1.89 - 0.25 = 54.14
)
def test_whether_the_graphs_were_taken_off_shows_in_what_is_left(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kv_gib: str, taken_off: int
) -> None:
    text = config() + USAGE.format(kv=kv_gib) + AVAILABLE.format(gib=kv_gib) + GRAPHS
    found = terms_of(sized(capsys, tmp_path, text, "--gpu", "h100"))
    assert found["cuda_graphs"]["num_bytes"] == -taken_off * GIB


def test_what_the_log_leaves_open_is_the_activations(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = config() + WEIGHTS.format(gib=15) + AVAILABLE.format(gib=50)
    found = terms_of(sized(capsys, tmp_path, text, "--gpu", "h100"))
    left = 0.92 * H100_CUDA_GIB - 15 - 50
    assert -found["activations"]["num_bytes"] / GIB == pytest.approx(left, abs=0.05)
    assert found["activations"]["detail"].startswith("all that line 3 leaves open")
    assert found["non_torch"]["num_bytes"] == found["cuda_graphs"]["num_bytes"] == 0


@pytest.mark.parametrize(("version", "fraction"), [("0.19.1", 0.90), ("0.20.0", 0.92)])
def test_the_default_fraction_is_that_of_the_version(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, version: str, fraction: float
) -> None:
    found = sized(capsys, tmp_path, config(version) + WEIGHTS.format(gib=15), "--gpu", "h100")
    assert found["setting"]["memory_utilization"] == fraction


def test_a_fraction_beside_a_log_without_one_is_a_change(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = config() + WEIGHTS.format(gib=15) + AVAILABLE.format(gib=50)
    now = sized(capsys, tmp_path, text, "--gpu", "h100")
    less = sized(capsys, tmp_path, text, "--gpu", "h100", "--gpu-memory-utilization", "0.82")
    fewer_gib = (now["available_bytes"] - less["available_bytes"]) / GIB
    assert fewer_gib == pytest.approx(0.10 * H100_CUDA_GIB, abs=0.01)
    levers = {lever["change"]: lever for lever in now["levers"]}
    same = sized(capsys, tmp_path, text, "--gpu", "h100", "--gpu-memory-utilization", "0.95")
    lever = levers["--gpu-memory-utilization 0.95"]
    assert lever["num_tokens"] == same["pool"]["num_tokens"]


def test_the_budget_has_more_digits_than_the_fraction(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """0.696 is printed as 0.70."""
    text = (
        "INFO worker.py:266] the current vLLM instance can use total_gpu_memory (79.15GiB) x "
        "gpu_memory_utilization (0.70) = 55.09GiB\n"
        "INFO worker.py:266] model weights take 8.00GiB; non_torch_memory takes 0.40GiB; PyTorch "
        "activation peak memory takes 1.48GiB; the rest of the memory reserved for KV Cache is 45.21GiB.\n"
    )
    found = sized(capsys, tmp_path, text, "--model", "llama-3.1-8b", "--max-model-len", "512")
    assert found["available_bytes"] / GIB == pytest.approx(45.21, abs=0.001)


def test_the_fraction_of_one_engine_is_not_anothers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = config() + "INFO args: gpu_memory_utilization=0.5\n" + WEIGHTS.format(gib=15)
    text += (
        "INFO worker.py:266] the current vLLM instance can use total_gpu_memory (79.15GiB) x "
        "gpu_memory_utilization (0.50) = 39.58GiB\n"
    )
    assert sized(capsys, tmp_path, text)["setting"]["memory_utilization"] == pytest.approx(
        0.5, abs=1e-3
    )
    other = sized(capsys, tmp_path, text, "--accounting", "sglang")
    assert other["setting"]["memory_utilization"] > 0.7


def test_the_length_of_the_engine_goes_before_that_of_its_concurrency(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = config() + AVAILABLE.format(gib=20)
    text += (
        "INFO [kv_cache_utils.py:720] Maximum concurrency for 4,096 tokens per request: 40.00x\n"
    )
    assert sized(capsys, tmp_path, text)["setting"]["max_model_len"] == 8192


def test_the_logs_quantisation_counts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = config(quantization="awq_marlin")
    found = sized(capsys, tmp_path, text, "--gpu", "h100")
    assert -terms_of(found)["weights"]["mib"] / 1024 == pytest.approx(5.4, abs=0.2)
    stated = sized(capsys, tmp_path, text + WEIGHTS.format(gib=5.37), "--gpu", "h100")
    assert not [lever for lever in stated["levers"] if "quantization" in lever["change"]]


def test_a_pool_of_nothing_is_compared(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = (
        "[2025-01-01 00:00:00] max_total_num_tokens=0, chunked_prefill_size=2048, "
        "max_prefill_tokens=16384, max_running_requests=2048, context_len=8192\n"
    )
    found = sized(capsys, tmp_path, text, "--model", "llama-3.1-8b", "--gpu", "h100")
    (row,) = [row for row in found["log"]["compared"] if row["figure"] == "num_tokens"]
    assert (row["printed"], row["difference"]) == (0, None)


@pytest.mark.parametrize(
    "line",
    ["max_num_batched_tokens=999999999999999", "tensor_parallel_size=99999999"],
)
def test_a_setting_that_no_flag_would_take_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str
) -> None:
    log = tmp_path / "start.log"
    name, _, value = line.partition("=")
    log.write_text(
        config().replace("tensor_parallel_size=1", line)
        if name == "tensor_parallel_size"
        else config() + f"INFO non-default args: {{'{name}': {value}}}\n"
    )
    said = refused(capsys, "--engine-log", str(log), "--gpu", "h100")
    assert f"{name} is " in said
    assert f"{log}:" in said
