"""TensorRT-LLM's start-up lines, from 0.5 to 1.2: C++ runtime and PyTorch backend.

Facts from `tensorrt_llm/_torch/pyexecutor/_util.py` and
`cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp` (github.com/NVIDIA/TensorRT-LLM), and from
published logs. The PyTorch backend allocates a small trial pool first; the last pool counts.
"""

import re

from .sentences import NUMBER as N
from .sentences import VERSION, EngineFormat

_SENTENCES = (
    rf"TensorRT[- ]LLM version:? (?P<version>{VERSION})",
    rf"Loaded engine size: (?P<weights__MiB>{N}) MiB",
    # C++: "available" is before the fraction is taken.
    rf"max tokens in paged kv cache: total: (?P<total_memory>{N}) GiB, available:"
    rf" (?P<free_after_load>{N}) GiB",
    rf"Number of blocks in KV cache primary pool: (?P<num_gpu_blocks>{N})",
    rf"Number of blocks in KV cache secondary pool: (?P<num_cpu_blocks>{N})",
    rf"Number of tokens per block: (?P<block_size>{N})",
    rf"\[window size=(?P<window_size>{N})\], tokens per block=(?P<block_size>{N}), primary blocks="
    rf"(?P<num_gpu_blocks>{N})(?:, secondary blocks=(?P<num_cpu_blocks>{N}))?",
    rf"Allocated (?P<kv_size>{N}) GiB for max tokens in paged KV cache \((?P<num_tokens>{N})\)",
    # 0.5 to 0.8.
    rf"Allocate (?P<kv_size__bytes>{N}) bytes for k/v cache",
    rf"Using (?P<num_tokens>{N}) tokens in paged KV cache",
    # PyTorch: "available" is after the fraction.
    rf"loading model weights \(inside torch\) in memory usage profiling: (?P<weights>{N}) GiB",
    rf"during inference \(inside torch\) in memory usage profiling: (?P<activation_peak>{N}) GiB",
    rf"Memory used outside torch .{{0,40}}? in memory usage profiling: (?P<non_torch>{N}) GiB",
    rf"\(torch \+ non-torch\): (?P<peak_used>{N}) GiB, available KV cache memory when calculating"
    rf" max tokens: (?P<available_kv>{N}) GiB"
    rf"(?:, fraction is set (?P<memory_utilization__exact>{N}))?"
    rf"(?:, kv size (?:per token )?is (?P<kv_bytes_per_token>{N}))?"
    rf"(?:[,. ]{{1,4}}device total memory (?P<total_memory>{N}) GiB)?"
    rf"(?:[,. ]{{1,4}}(?:tmp kv_mem|temporary kv cache memory during profiling)"
    rf" (?P<profiling_kv>{N}) GiB)?",
    rf"Both free_gpu_memory_fraction and max_tokens are set \(to"
    rf" (?P<memory_utilization__exact>{N}) and {N}, respectively\)",
    rf"max_seq_len=(?P<max_model_len>{N}), max_num_requests=(?P<max_num_seqs>{N}),"
    rf" max_num_tokens=(?P<max_num_batched_tokens>{N})",
)

TRTLLM = EngineFormat(
    name="trtllm",
    looked_for='TensorRT-LLM ("for max tokens in paged KV cache", "KV cache primary pool")',
    sentences=tuple(re.compile(sentence) for sentence in _SENTENCES),
    keywords=(
        "LLM version",
        "Loaded engine size",
        "paged kv cache",
        "paged KV cache",
        "KV cache primary pool",
        "KV cache secondary pool",
        "tokens per block",
        "for k/v cache",
        "in memory usage profiling",
        "during memory usage profiling",
        "free_gpu_memory_fraction and max_tokens",
        "max_num_requests=",
        "LLM Args:",
        "engine args: ",
    ),
    settings=re.compile(r"LLM Args:|TensorRT-LLM engine args: "),
    settings_keys={
        "model": "model",
        "tensor_parallel_size": "tensor_parallel_size",
        "pipeline_parallel_size": "pipeline_parallel_size",
        "max_batch_size": "max_num_seqs",
        "max_num_tokens": "max_num_batched_tokens",
        "max_seq_len": "max_model_len",
        "free_gpu_memory_fraction": "memory_utilization",
        "tokens_per_block": "block_size",
    },
    markers=re.compile(r"TensorRT[- ]LLM version:? [0-9]|Loaded engine size:"),
    rank=re.compile(r"\[(?P<rank>RANK \d+)\]|^\[(?P<mpi_rank>\d+,\d+)\]<std"),
    loads="",
    sizes=frozenset({"num_tokens"}),
)
