"""A deployment with the change that a text asks for, as a user would make it."""

import re
from dataclasses import replace

from kvtwin.sim import quantize
from kvtwin.sim.sizing.deployment import Deployment

_FIELDS = {
    "max-model-len": "max_model_len",
    "gpu-memory-utilization": "memory_utilization",
    "mem-fraction-static": "memory_utilization",
    "kv_cache_free_gpu_memory_fraction": "memory_utilization",
    "max-num-batched-tokens": "max_num_batched_tokens",
    "max-num-seqs": "max_num_seqs",
    "block-size": "block_size",
    "num-gpu-blocks-override": "num_gpu_blocks_override",
    "kv-cache-memory-bytes": "kv_cache_memory_bytes",
    "tensor-parallel-size": "tensor_parallel_size",
    "data-parallel-size": "data_parallel_size",
}


def changed(what: Deployment, text: str) -> Deployment:
    """`what` with the flag of a text: a lever's, or a proposal to lower, raise or use it."""
    if text == "--enforce-eager":
        return replace(what, enforce_eager=True)
    found = re.fullmatch(r"(?:(?:lower|raise|use) )?--([\w-]+)(?: to)? (\S+)", text)
    assert found, text
    flag, value = found[1], found[2].replace(",", "")
    if flag == "quantization":
        return replace(what, model=quantize(what.model, value))
    if flag == "kv-cache-dtype":
        return replace(what, kv_cache_dtype=value)
    field = _FIELDS[flag]
    number = float(value) if field == "memory_utilization" else int(value)
    return replace(what, **{field: number})
