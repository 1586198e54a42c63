"""Traces and settings under which every policy has to work for its memory."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kvtwin.gpu.twin.content import ContentShape
from kvtwin.gpu.twin.layers import windows_of
from kvtwin.sim import BlockGroups, RunConfig, pool
from kvtwin.traces import Content, Trace, TraceChunk

SHAPE = ContentShape(2, 4, 2, 16, torch.float16)
DURATION_NS = 2_000_000
POLICIES: dict[str, dict[str, Any]] = {
    "static": {},
    "static-iteration": {},
    "orca-max": {},
    "orca-pow2": {},
    "orca-oracle": {},
    "contiguous": {},
    "contiguous, compacting": {"compaction": True, "fit": "best"},
    "paged": {},
    "paged, by the step": {"admission": "step", "watermark": 0.1},
    "slots": {"num_gpu_blocks_override": 64},
    "no-cache": {},
    "vllm-v1": {},
    "vllm-v1-no-caching": {"async_scheduling": True},
    "vllm-v0, samples": {"num_samples": 3},
    "vllm-v0, beams": {"beam_width": 3},
    "vllm-v0, slow link": {"num_samples": 3, "swap_copy_ns": 1_000_000},  # steps wait for transfers
    "vllm-v0, beams recomputed": {"beam_width": 3, "preemption_mode": "recompute"},
    "vllm-v0-prefix-caching, samples": {"num_samples": 3},
    "vllm-v0-prefix-caching, beams": {"beam_width": 3},
    "vllm-v0-prefix-caching, one": {"preemption_mode": "recompute", "num_gpu_blocks_override": 20},
    "vllm-v0-prefix-caching, one swapped": {"preemption_mode": "swap", "swap_copy_ns": 1_000_000},
}

CACHING = [case for case in POLICIES if case.startswith("vllm-v0-prefix-caching")]
SMALL_BLOCKS = {"block_size": 4, "num_gpu_blocks_override": 64}  # prompts share several


def config_of(case: str, **changed: Any) -> RunConfig:
    """A pool of 384 slots and small steps, so that prompts are cut, sequences wait and are preempted."""
    settings: dict[str, Any] = {
        "num_gpu_blocks_override": 24,
        "max_model_len": 100,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 40,
        "growth_tokens": 4,
        "cost": f"constant:{DURATION_NS}",
    }
    if case.startswith("vllm-v0"):  # prompts whole, several sequences a request
        settings |= {"max_num_seqs": 16, "max_num_batched_tokens": 128}
    settings |= POLICIES[case] | changed
    return RunConfig("opt-125m", "l4", policy=case.partition(",")[0], **settings)


def grouped(patch: pytest.MonkeyPatch, groups: BlockGroups, num_layers: int) -> ContentShape:
    """Makes vLLM group the layers of any model so. The shape of the executed ones."""
    patch.setattr(pool, "vllm_groups", lambda _, *, hybrid: groups if hybrid else BlockGroups())
    return replace(SHAPE, num_layers=num_layers, windows=windows_of(groups, num_layers))


def make_trace(
    seed: int, num: int = 24, content: bool = False, span_ns: int = 100_000_000
) -> Trace:
    """Prompts of 3 to 59 tokens, outputs of 1 to 39, within `span_ns`; with content, some requests begin alike."""
    rng = np.random.default_rng(seed)
    prompts, outputs = rng.integers(3, 60, num), rng.integers(1, 40, num)
    known = None
    if content:
        # A stream of three, perhaps into the output; what is behind it is like no other.
        streams, shared = rng.integers(0, 3, num), rng.integers(1, prompts + outputs + 1)
        known = Content(1, np.arange(num + 1), streams, np.zeros(num, dtype=int), shared)
    arrival_ns = np.sort(rng.integers(0, span_ns, num))
    chunk = TraceChunk(arrival_ns, prompts, outputs, np.full(num, -1), content=known)
    return Trace("made", "synthetic", (chunk,))
