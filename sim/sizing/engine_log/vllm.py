"""vLLM's start-up lines, from 0.2 to 0.32.

Facts from `v1/worker/gpu_worker.py`, `v1/worker/gpu_model_runner.py`, `v1/core/kv_cache_utils.py`
and `utils/mem_utils.py` of 0.32.0, and from published logs of older versions. All memory is divided
by 2**30, also where old versions print "GB". Figures are rounded with two decimals, weights with
four up to 0.11.
"""

import re

from .sentences import NUMBER as N
from .sentences import VERSION, EngineFormat

_SENTENCES = (
    rf"odel (?:weights|loading) took (?P<weights>{N}) ?Gi?B",
    # 0.6.5 to the last V0: four lines of one message.
    rf"total_gpu_memory \((?P<total_memory>{N}) ?GiB\) x gpu_memory_utilization"
    rf" \((?P<memory_utilization>{N})\) = (?P<budget>{N}) ?GiB",
    rf"model weights take (?P<weights>{N}) ?GiB",
    rf"non_torch_memory takes (?P<non_torch>{N}) ?GiB",
    rf"PyTorch activation peak memory takes (?P<activation_peak>{N}) ?GiB",
    rf"memory reserved for KV Cache is (?P<available_kv>{N}) ?GiB",
    # 0.6.4: the peak includes the weights.
    rf"total_gpu_memory=(?P<total_memory>{N})Gi[Bb] .{{0,80}}?peak_torch_memory=(?P<torch_peak>{N})"
    rf"Gi[Bb] .{{0,60}}?non_torch_memory=(?P<non_torch>{N})Gi[Bb] kv_cache_size="
    rf"(?P<available_kv>{N})Gi[Bb] gpu_memory_utilization=(?P<memory_utilization>{N})",
    rf"(?i:(?:gpu|cuda|rocm|hpu|xpu|npu|tpu|musa) blocks): (?P<num_gpu_blocks>{N})"
    rf"(?:, # CPU blocks: (?P<num_cpu_blocks>{N}))?",
    rf"cache_config_info with initialization after num_gpu_blocks is: (?P<num_gpu_blocks>{N})",
    rf"Available KV cache memory: (?P<available_kv>{N}) ?GiB",
    rf"KV cache size: (?P<num_tokens>{N}) tokens",
    rf"Maximum concurrency for (?P<concurrency_at>{N}) tokens per request:"
    rf" (?P<max_concurrency>{N})x",
    rf"Graph capturing finished in {N} secs?, took (?P<cuda_graphs>{N}) Gi?B",
    rf"Estimated CUDA graph memory: (?P<cuda_graph_estimate>{N}) GiB",
    rf"CUDA graph pool memory: {N} GiB \(actual\), (?P<cuda_graph_estimate>{N}) GiB \(estimated\)",
    # 0.10.2 and later, after capturing.
    rf"Free memory on device.{{0,20}}? \({N}/(?P<total_memory>{N}) GiB\) on startup",
    rf"esired GPU memory utilization (?:is )?\((?P<memory_utilization__exact>{N}),"
    rf" (?P<budget>{N}) GiB\)",
    rf"Actual usage is (?P<weights>{N}) GiB for weight, (?P<activation_peak>{N}) GiB for peak"
    rf" activation, (?P<non_torch>{N}) GiB for non-torch memory",
    rf"Actual usage is (?P<consumed>{N}) GiB for consumed memory .{{0,40}}?,"
    rf" (?P<activation_peak>{N}) GiB for peak activation",
    rf"and (?P<cuda_graphs>{N}) GiB for CUDAGraph memory",
    rf"Current kv cache memory in use is (?:(?P<available_kv>{N}) GiB"
    rf"|(?P<available_kv__bytes>{N}) bytes)",
    rf"The current --gpu-memory-utilization=(?P<memory_utilization>{N})",
    rf"Initial free memory {N} GiB, reserved (?P<available_kv>{N}) GiB memory for KV Cache as",
    # Refusals to start.
    rf"max seq len \((?P<max_model_len>{N})\), \((?P<needed_kv>{N}) Gi?B KV cache is needed, which"
    rf" is larger than the available KV cache memory \((?P<checked_kv>{N}) Gi?B\)",
    rf"the estimated maximum model length is (?P<estimated_max_model_len>{N})",
    rf"max seq len \((?P<max_model_len>{N})\) is larger than the maximum number of tokens that can"
    rf" be stored in KV cache \((?P<num_tokens>{N})\)",
    # Settings.
    rf"vLLM API server version (?P<version>{VERSION})",
    rf"Initializing an? (?:V1 )?LLM engine \(v(?P<version>{VERSION})\)",
    rf"Using max model len (?P<max_model_len>{N})",
    rf"Auto-fit max_model_len: reduced from {N} to (?P<max_model_len>{N}) ",
    rf"Chunked prefill is enabled with max_num_batched_tokens=(?P<max_num_batched_tokens>{N})",
    rf"Overriding num_gpu_blocks={N} with num_gpu_blocks_override="
    rf"(?P<num_gpu_blocks_override>{N})",
    rf"Setting attention block size to (?P<block_size>{N}) tokens",
    # Remarks that say why the printed size is not blocks x block size.
    rf"(?P<remark>Add {N} padding layers|Hybrid KV cache manager is disabled"
    r"|attention page size is >= mamba page size)",
)

VLLM = EngineFormat(
    name="vllm",
    looked_for='vLLM ("Model loading took", "# GPU blocks", "GPU KV cache size")',
    sentences=tuple(re.compile(sentence) for sentence in _SENTENCES),
    keywords=(
        "loading took",
        "weights took",
        "total_gpu_memory",
        "model weights take",
        "non_torch_memory",
        "activation peak memory",
        "KV Cache",
        "KV cache size",
        "KV cache memory",
        "KV cache manager is",
        "kv cache memory in use",
        "locks: ",
        "num_gpu_blocks is: ",
        "tokens per request",
        "Graph capturing finished",
        "CUDA graph memory",
        "CUDA graph pool",
        "Free memory on device",
        "memory utilization",
        "max seq len",
        "maximum model length",
        "vLLM API server version",
        "LLM engine",
        "args: ",
        "max model len",
        "Auto-fit max_model_len",
        "Chunked prefill is enabled",
        "num_gpu_blocks_override",
        "attention block size",
        "padding layers",
    ),
    settings=re.compile(
        r"LLM engine \(v[^)]{1,60}\) with config:|non-default args:|args: Namespace\("
    ),
    settings_keys={
        "model": "model",
        "quantization": "quantization",
        "kv_cache_dtype": "kv_cache_dtype",
        "enforce_eager": "enforce_eager",
        "gpu_memory_utilization": "memory_utilization",
        "max_seq_len": "max_model_len",
        "max_model_len": "max_model_len",
        "max_num_seqs": "max_num_seqs",
        "max_num_batched_tokens": "max_num_batched_tokens",
        "block_size": "block_size",
        "num_gpu_blocks_override": "num_gpu_blocks_override",
        "tensor_parallel_size": "tensor_parallel_size",
        "pipeline_parallel_size": "pipeline_parallel_size",
        "data_parallel_size": "data_parallel_size",
        "decode_context_parallel_size": "decode_context_parallel_size",
    },
    markers=re.compile(
        r"vLLM API server version|Initializing an? (?:V1 )?LLM engine|non-default args:"
    ),
    rank=re.compile(r"\((?P<rank>(?:\w*[Ww]orker\w*|EngineCore_DP\d+)(?: rank=\d+)?(?: pid=\d+)?)"),
    loads="weights",
    sizes=frozenset({"num_gpu_blocks", "num_tokens", "max_concurrency", "needed_kv"}),
)
