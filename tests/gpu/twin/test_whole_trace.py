"""A whole trace through the kernels, interpreted: every step equals the torch operations' and float64."""

from typing import Any

import numpy as np
import pytest
import torch
from twin_cases import grouped

from kvtwin.gpu.twin.content import ContentShape
from kvtwin.gpu.twin.executor import ExecutedStep
from kvtwin.gpu.twin.foresight import foresee
from kvtwin.gpu.twin.outputs import OutputCheck, largest_difference
from kvtwin.gpu.twin.validate import Depth, validate_decisions
from kvtwin.sim import BlockGroups, RunConfig
from kvtwin.sim.drive import drive
from kvtwin.traces import Trace, TraceChunk

SHAPE = ContentShape(2, 4, 2, 16, torch.float16)
EVERY_OUTPUT = Depth(audit_steps=4, output_steps=1, num_rows=8)


def trace() -> Trace:
    """8 requests in two waves."""
    prompts = np.array([9, 3, 14, 5, 11, 4, 7, 12])
    outputs = np.array([7, 12, 3, 9, 5, 1, 8, 6])
    arrival_ns = np.array([0, 0, 0, 0, 4, 4, 4, 9]) * 1_000_000
    return Trace("made", "synthetic", (TraceChunk(arrival_ns, prompts, outputs, np.full(8, -1)),))


CASES = {
    "paged": {"num_gpu_blocks_override": 11},
    "contiguous": {"num_gpu_blocks_override": 12, "compaction": True},
    "orca-pow2": {"num_gpu_blocks_override": 16},
    "vllm-v0": {"num_gpu_blocks_override": 16, "num_samples": 2, "preemption_mode": "swap"},
    "vllm-v1": {"num_gpu_blocks_override": 16},
}
# Of vllm-v1: a window beside twice as many layers without one.
GROUPS = BlockGroups((5, None), (1, 2))


@pytest.mark.parametrize("policy", CASES)
def test_every_step_of_a_trace(
    policy: str, on: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(
        *("opt-125m", "l4"),
        policy=policy,
        block_size=4,
        max_model_len=24,
        max_num_seqs=8,
        max_num_batched_tokens=24,
        growth_tokens=2,
        cost="constant:1000000",
        **CASES[policy],
    )
    shape = SHAPE
    if policy == "vllm-v1":
        shape = grouped(monkeypatch, GROUPS, 3)
    foresight = foresee(trace(), config, drive)
    outs: dict[str, list[torch.Tensor]] = {name: [] for name in on}
    checks = {}
    look = OutputCheck.after_step
    for name, backend in on.items():

        def keep(check: OutputCheck, step: ExecutedStep, name: str = name) -> None:
            outs[name].append(step.out)
            look(check, step)

        monkeypatch.setattr(OutputCheck, "after_step", keep)
        found, execution, checks[name] = validate_decisions(
            foresight, shape, backend, EVERY_OUTPUT, paranoid=False
        )
        assert found.passed, [*found.findings, *found.predictions]
        assert found.backend == name
        assert all(prediction.backend == name for prediction in found.predictions)
        assert execution.summary["num_finished"] == 8
    assert (execution.summary["preemptions"] > 0) == (policy in ("paged", "vllm-v0", "vllm-v1"))
    assert (execution.summary["moved_slots"] > 0) == (policy in ("contiguous", "vllm-v0"))
    assert ({"copy", "swap_out", "swap_in"} <= set(foresight.log.actions)) == (policy == "vllm-v0")
    interpreted, torchs = checks["triton-interpret"], checks["torch"]
    num_same, share = largest_difference(interpreted, torchs)
    assert num_same == len(torchs.samples) > 40
    assert share <= 1
    # Tokens in front of a chunk's last one have no float64 of their own.
    allowed = 2 * max(output.tolerance for output in torchs.samples.values())
    for one, other in zip(outs["triton-interpret"], outs["torch"], strict=True):
        assert one.shape == other.shape
        assert (one.float() - other.float()).abs().max() <= allowed
