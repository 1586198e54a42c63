"""The questions that flags of `kvtwin size` ask beyond the pool itself, answered as JSON types."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from kvtwin.sim.catalog import GpuSpec
from kvtwin.sim.cost import roofline_cost
from kvtwin.sim.sizing.accounting import Accounting
from kvtwin.sim.sizing.lengths import LengthMix, mix_capacity
from kvtwin.sim.sizing.questions import recompute_s, reload_s, reusable_prefix_tokens, servable
from kvtwin.sim.sizing.size import Sizing
from kvtwin.traces import UserError, open_trace

from .options import SizeInputs

Answer = dict[str, Any]
LARGEST_RATE = 1e15
PREFIX_BLOCK_SIZES = (16, 128)


def mix_answer(inputs: SizeInputs, sizing: Sizing) -> Answer | None:
    """How many requests of the length mix are in the pool at a time."""
    if inputs.lengths is None:
        return None
    mix = _mix(inputs.lengths, sizing.deployment.max_model_len)
    facts: Answer = {
        "name": mix.name,
        "num_requests": len(mix.num_prompt_tokens),
        "num_rejected": mix.num_rejected,
        "num_clipped": mix.num_clipped,
        "mean_prompt_tokens": float(mix.num_prompt_tokens.mean()),
        "mean_output_tokens": float(mix.num_output_tokens.mean()),
    }
    found = mix_capacity(sizing.pool, mix)
    replicas = sizing.deployment.data_parallel_size
    return {
        **facts,
        "mean_resident_tokens": found.mean_resident_tokens,
        "num_running": replicas * found.num_running,
        "num_running_reserved": replicas * found.num_running_reserved,
        "num_too_long": found.num_too_long,
    }


def request_answer(inputs: SizeInputs, sizing: Sizing) -> Answer | None:
    """Whether one request can be served."""
    if inputs.request is None:
        return None
    prompt, max_tokens = _two_counts("--request", inputs.request)
    found = servable(sizing.pool, prompt, max_tokens, sizing.deployment.max_model_len)
    return {**vars(found), "servable": not found.reason}


def prefix_answer(inputs: SizeInputs, sizing: Sizing) -> Answer | None:
    """What requests can share of a common prefix, at this and at common block sizes."""
    if inputs.shared_prefix_tokens is None:
        return None
    shared = inputs.shared_prefix_tokens
    block_sizes = sorted({sizing.pool.block_size, *PREFIX_BLOCK_SIZES})
    return {
        "shared_prefix_tokens": shared,
        "reusable_tokens": reusable_prefix_tokens(shared, sizing.pool.block_size),
        "by_block_size": {str(b): reusable_prefix_tokens(shared, b) for b in block_sizes},
    }


def session_answer(inputs: SizeInputs, sizing: Sizing, accounting: Accounting) -> Answer | None:
    """Whether a session that comes back is sooner reloaded from the host or recomputed."""
    if inputs.session_tokens is None:
        return None
    num_tokens = inputs.session_tokens
    num_bytes, link = sizing.pool.bytes_for(num_tokens), _link(inputs, sizing)
    if inputs.prefill_tokens_per_s is not None:
        seconds = num_tokens / _rate("--prefill-tokens-per-s", inputs.prefill_tokens_per_s)
    else:
        seconds = _roofline_s(num_tokens, sizing, accounting)
    return {
        "session_tokens": num_tokens,
        "kv_bytes": num_bytes,
        "link_bytes_per_s": link,
        "reload_s": reload_s(num_bytes, link),
        "recompute_s": seconds,
        "calibrated": inputs.prefill_tokens_per_s is not None,
    }


def _link(inputs: SizeInputs, sizing: Sizing) -> float:
    """Bytes/s of the link to the host."""
    if inputs.link_gb_per_s is not None:
        return 1e9 * _rate("--link-gb-per-s", inputs.link_gb_per_s)
    gpu = sizing.deployment.gpu
    if not isinstance(gpu, GpuSpec):
        raise UserError("--session-tokens needs --gpu or --link-gb-per-s: no link is known")
    return gpu.pcie_bytes_per_s


def _roofline_s(num_tokens: int, sizing: Sizing, accounting: Accounting) -> float:
    deployment = sizing.deployment
    if not isinstance(deployment.gpu, GpuSpec):
        raise UserError("--session-tokens needs --gpu or --prefill-tokens-per-s: no rate is known")
    cost = roofline_cost(
        deployment.model,
        deployment.gpu,
        deployment.kv_cache_dtype,
        deployment.tensor_parallel_size,
    )
    return recompute_s(cost, num_tokens, accounting.max_num_batched_tokens(deployment))


def _mix(said: str, max_model_len: int) -> LengthMix:
    kind, colon, numbers = said.partition(":")
    if colon and kind == "mean":
        if "," in numbers:
            prompt, output = _two_counts("--lengths", numbers)
        else:
            return _resident_mix(said, _count("--lengths", numbers), max_model_len)
        return LengthMix.of_lengths(said, np.array([prompt]), np.array([output]), max_model_len)
    if not Path(said).exists() and not Path(said).suffix:
        raise UserError(
            f"--lengths is {said!r}; it must be a trace file, mean:TOKENS or mean:PROMPT,OUTPUT"
        )
    return LengthMix.of_trace(open_trace(said), max_model_len)


def _resident_mix(said: str, num_tokens: int, max_model_len: int) -> LengthMix:
    """Requests that hold so many tokens each; all of max_model_len may be."""
    if num_tokens > max_model_len:
        raise UserError(
            f"--lengths {said}: a request holds at most max_model_len ({max_model_len:,}) tokens"
        )
    return LengthMix(said, np.array([num_tokens]), np.array([1]))


def _two_counts(flag: str, said: str) -> tuple[int, int]:
    parts = said.split(",")
    if len(parts) != 2:
        raise UserError(f"{flag} is {said!r}; it must be two numbers, such as 1000,200")
    return _count(flag, parts[0]), _count(flag, parts[1])


def _count(flag: str, said: str) -> int:
    text = said.strip()
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:20]) <= 10**9:
        raise UserError(f"{flag} has {said!r}; it must be a whole number from 1 to 1,000,000,000")
    return int(text)


def _rate(flag: str, value: float) -> float:
    if not math.isfinite(value) or not 0 < value <= LARGEST_RATE:
        raise UserError(f"{flag} is {value:g}; it must be above 0 and at most {LARGEST_RATE:g}")
    return value
