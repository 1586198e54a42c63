"""One long request with and without a KV cache, for the figure that shows what the cache is for."""

import dataclasses
from pathlib import Path

import numpy as np

from kvtwin.sim import RunConfig, policy_names, policy_settings, size_pool
from kvtwin.traces import UNKNOWN_MAX_TOKENS, Trace, TraceChunk

from .layout import CACHE_OR_NOT_DIR, CACHE_OR_NOT_POLICIES
from .simulate_all import Job

NUM_PROMPT_TOKENS = 128
MAX_OUTPUT_TOKENS = 1900
# Below this the curves would not tell a line from a parabola.
MIN_OUTPUT_TOKENS = 64


def single_request_jobs(config: RunConfig, out: Path) -> list[Job]:
    """The runs for the figure, in subdirectories of `out`; none where no long request fits."""
    pool = size_pool(config)
    # Without a cache a step holds the activations of the whole request instead of its KV.
    longest = min(
        pool.max_model_len, pool.num_slots, policy_settings(config, pool).activation_tokens
    )
    num_output_tokens = min(MAX_OUTPUT_TOKENS, longest - NUM_PROMPT_TOKENS)
    known = set(CACHE_OR_NOT_POLICIES) <= set(policy_names())
    if not known or num_output_tokens < MIN_OUTPUT_TOKENS:
        return []
    trace = single_request_trace(num_output_tokens)
    # Nothing but the request itself limits it: no cap on its output, no pool held back. Steps of constant length would
    # hide what recomputing costs.
    cost = config.cost if config.constant_cost_ns is None else "roofline"
    alone = dataclasses.replace(
        config, max_tokens=None, watermark=0.0, cost=cost, closed_loop=False
    )
    return [
        Job(
            trace,
            dataclasses.replace(alone, policy=policy),
            out / CACHE_OR_NOT_DIR / policy,
            paranoid=False,
        )
        for policy in CACHE_OR_NOT_POLICIES
    ]


def single_request_trace(num_output_tokens: int) -> Trace:
    """A trace of one request with `NUM_PROMPT_TOKENS` of prompt."""

    def column(value: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([value], dtype=np.int64)

    chunk = TraceChunk(
        arrival_ns=column(0),
        num_prompt_tokens=column(NUM_PROMPT_TOKENS),
        num_output_tokens=column(num_output_tokens),
        max_tokens=column(UNKNOWN_MAX_TOKENS),
    )
    return Trace(name="single-request", format="synthetic", chunks=(chunk,))
