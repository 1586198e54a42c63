"""Reading the start-up lines of every generation of each engine, however they are prefixed."""

import re
from collections.abc import Callable
from pathlib import Path

import engine_logs
import pytest
from engine_logs import read_log, stated

# The facts of each log, by eye.
LOGS: dict[str, tuple[str, str, dict[str, object]]] = {
    "vllm-0.6.4": (
        "vllm",
        engine_logs.VLLM_0_6_4,
        {
            "version": "0.6.4.post1",
            "model": "org/small",
            "kv_cache_dtype": "auto",
            "enforce_eager": "False",
            "memory_utilization": 0.9,
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "max_model_len": 20000,
            "total_memory": 23.58,
            "weights": 14.9888,
            "torch_peak": 17.06,
            "non_torch": 0.35,
            "available_kv": 3.81,
            "num_gpu_blocks": 1952,
            "num_cpu_blocks": 2048,
            "max_concurrency": 1.56,
            "concurrency_at": 20000,
        },
    ),
    "vllm-0.7": (
        "vllm",
        engine_logs.VLLM_0_7,
        {
            "memory_utilization": 0.9,
            "total_memory": 79.25,
            "budget": 71.33,
            "weights": 14.9888,
            "activation_peak": 1.26,
            "non_torch": 0.16,
            "cuda_graphs": 0.27,
            "available_kv": 54.92,
            "num_gpu_blocks": 28119,
            "num_cpu_blocks": 2048,
            "max_concurrency": 3.43,
            "concurrency_at": 131072,
        },
    ),
    "vllm-0.8": (
        "vllm",
        engine_logs.VLLM_0_8,
        {
            "version": "0.8.4",
            "model": "org/small",
            "quantization": "fp8",
            "kv_cache_dtype": "fp8_e4m3",
            "enforce_eager": "True",
            "memory_utilization": 0.95,
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "max_model_len": 40960,
            "max_num_seqs": 128,
            "max_num_batched_tokens": 2048,
            "block_size": 16,
            "weights": 14.9889,
            "cuda_graphs": 0.6,
            "available_kv": 18.69,
            "num_tokens": 136080,
            "max_concurrency": 3.32,
            "concurrency_at": 40960,
        },
    ),
    "vllm-0.32": (
        "vllm",
        engine_logs.VLLM_0_32,
        {
            "model": "org/small",
            "memory_utilization": 0.97,
            "max_model_len": 262144,
            "max_num_seqs": 1,
            "total_memory": 94.97,
            "budget": 92.12,
            "weights": 81.2,
            "activation_peak": 1.78,
            "consumed": 81.7,
            "cuda_graphs": 0.28,
            "cuda_graph_estimate": 0.33,
            "available_kv": 8.64,
            "num_tokens": 315039,
            "max_concurrency": 1.2,
            "concurrency_at": 262144,
        },
    ),
    "vllm-refuses": (
        "vllm",
        engine_logs.VLLM_REFUSES,
        {
            "max_model_len": 221000,
            "available_kv": 5.59,
            "needed_kv": 10.12,
            "checked_kv": 5.59,
            "estimated_max_model_len": 122080,
        },
    ),
    "sglang": (
        "sglang",
        engine_logs.SGLANG,
        {
            "model": "org/small",
            "kv_cache_dtype": "auto",
            "enforce_eager": "False",
            "memory_utilization": 0.85,
            "tensor_parallel_size": 4,
            "data_parallel_size": 1,
            "max_model_len": 131072,
            "max_num_seqs": 2049,
            "block_size": 1,
            "weights": 15.54,
            "cuda_graphs": 0.93,
            "free_before_load": 21.63,
            "free_after_load": 6.09,
            "num_tokens": 46611,
            "pool_tokens": 46611,
            "k_size": 1.42,
            "v_size": 1.42,
        },
    ),
    "sglang-0.5": (
        "sglang",
        engine_logs.SGLANG_0_5,
        {
            "model": "org/moe",
            "kv_cache_dtype": "torch.bfloat16",
            "memory_utilization": 0.88,
            "tensor_parallel_size": 1,
            "weights": 73.58,
            "cuda_graphs": 1.25,
            "free_after_load": 209.98,
            "num_tokens": 2454421,
            "pool_tokens": 2454421,
            "kv_size": 160.63,
        },
    ),
    "trtllm-cpp": (
        "trtllm",
        engine_logs.TRTLLM_CPP,
        {
            "version": "0.17.0",
            "max_model_len": 2048,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 8192,
            "block_size": 64,
            "total_memory": 79.1,
            "weights": 12855,
            "free_after_load": 70.48,
            "num_gpu_blocks": 4060,
            "num_cpu_blocks": 0,
            "num_tokens": 259840,
            "kv_size": 63.44,
        },
    ),
    "trtllm-pytorch": (
        "trtllm",
        engine_logs.TRTLLM_PYTORCH,
        {
            "memory_utilization": 0.8999999761581421,
            "block_size": 32,
            "total_memory": 119.7,
            "weights": 13.02,
            "activation_peak": 0.85,
            "non_torch": 49.28,
            "peak_used": 113.65,
            "profiling_kv": 0.56,
            "available_kv": 5.95,
            "num_tokens": 86720,
            "kv_size": 5.95,
            "kv_bytes_per_token": 73728,
        },
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_every_generation_is_read(name: str, tmp_path: Path) -> None:
    engine, log, expected = LOGS[name]
    facts = read_log(tmp_path, log)
    assert facts.engine == engine
    assert stated(facts) == expected


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize(
    "disguise",
    [
        lambda log: log.replace("\n", "\r\n"),
        lambda log: re.sub(r"(?m)^(\S+)", "\x1b[36m\\1\x1b[0m", log),
        lambda log: re.sub(r"(?m)^", "2025-04-19 17:31:14.679 | ", log),
        lambda log: re.sub(r"(?m)^", "node vllm[188300]: ", log),
        lambda log: "another program says: 12 GB free\n" + log.replace("\n", "\nnoise\n"),
        lambda log: log.removesuffix("\n"),
    ],
    ids=["crlf", "colours", "container", "journal", "mixed", "no-last-newline"],
)
def test_prefixes_and_noise_change_nothing(
    name: str, disguise: Callable[[str], str], tmp_path: Path
) -> None:
    engine, log, expected = LOGS[name]
    facts = read_log(tmp_path, disguise(log))
    assert facts.engine == engine
    assert stated(facts) == expected
