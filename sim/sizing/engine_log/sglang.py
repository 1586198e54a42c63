"""SGLang's start-up lines, from 0.3 to 0.5.23.

Facts from `srt/model_executor/model_runner.py`, `srt/mem_cache/memory_pool.py`,
`srt/managers/scheduler.py` and `srt/utils/common.py` (`get_available_gpu_memory`) of 0.5.23, and
from published logs of older versions. Every "GB" is 2**30 bytes, rounded to two decimals.
"""

import re

from .sentences import NUMBER as N
from .sentences import EngineFormat

_SENTENCES = (
    rf"Load weight begin\. avail mem=(?P<free_before_load>{N}) GB",
    rf"Load weight end\..{{0,300}}?avail mem=(?P<free_after_load>{N}) GB"
    rf"(?:, mem usage=(?P<weights>{N}) GB)?",
    # "VA upper bound" in place of "is allocated" is address space, not memory.
    rf"(?<!draft )KV [Cc]ache (?:is )?allocated\.(?: dtype: [\w.]{{1,40}},)?"
    rf"(?: #tokens: (?P<pool_tokens>{N}),)?"
    rf"(?: K size: (?P<k_size>{N}) GB, V size: (?P<v_size>{N}) GB| KV size: (?P<kv_size>{N}) GB)",
    rf"Capture cuda graph end\..{{0,60}}?mem usage=(?P<cuda_graphs>{N}) GB",
    rf"Capture (?:decode )?CUDA graph end\..{{0,2000}}?mem usage=(?P<cuda_graphs>{N}) GB",
    rf"max_total_num_tokens=(?P<num_tokens>{N})(?:, .{{0,80}}?"
    rf"max_running_requests=(?P<max_num_seqs>{N}), context_len=(?P<max_model_len>{N}))?",
    r"Using KV cache dtype: (?P<kv_cache_dtype>[\w.]{1,40})",
    r"KV Cache is allocated\. dtype: (?P<kv_cache_dtype>[\w.]{1,40})",
    rf"increase --mem-fraction-static\. Current value: mem_fraction_static="
    rf"(?P<memory_utilization__exact>{N})",
    r"(?P<remark>[Ss]liding window memory pool|Mamba Cache is allocated|SWAKVPool mem usage)",
)

SGLANG = EngineFormat(
    name="sglang",
    looked_for='SGLang ("Load weight end", "KV Cache is allocated", "max_total_num_tokens=")',
    sentences=tuple(re.compile(sentence) for sentence in _SENTENCES),
    keywords=(
        "Load weight",
        "allocated.",
        "is allocated",
        "graph end.",
        "max_total_num_tokens=",
        "Using KV cache dtype",
        "mem-fraction-static",
        "indow memory pool",
        "SWAKVPool",
        "server_args=",
    ),
    settings=re.compile(r"server_args=(?:ServerArgs\()?"),
    settings_keys={
        "model_path": "model",
        "quantization": "quantization",
        "kv_cache_dtype": "kv_cache_dtype",
        "disable_cuda_graph": "enforce_eager",
        "mem_fraction_static": "memory_utilization",
        "context_length": "max_model_len",
        "max_running_requests": "max_num_seqs",
        "chunked_prefill_size": "max_num_batched_tokens",
        "page_size": "block_size",
        "tp_size": "tensor_parallel_size",
        "pp_size": "pipeline_parallel_size",
        "dp_size": "data_parallel_size",
        "dcp_size": "decode_context_parallel_size",
    },
    markers=re.compile(r"server_args=(?:ServerArgs\(|\{)"),
    rank=re.compile(r"\[(?:[\d :,.-]{10,30} )?(?P<rank>(?:DP|PP|TP)\d+(?: \w{2,12}\d+){0,4})\]"),
    loads="free_after_load",
    sizes=frozenset({"num_tokens"}),
    # A draft model's weights and pool follow those of the model.
    first_counts=frozenset(
        [
            "weights",
            "free_before_load",
            "free_after_load",
            "pool_tokens",
            "k_size",
            "v_size",
            "kv_size",
        ]
    ),
)
