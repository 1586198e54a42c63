"""Groups of layers with tables of their own, whose windows give blocks back, are executed as they were simulated."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from twin_cases import config_of, grouped, make_trace

from kvtwin.gpu.check.backends import Backend
from kvtwin.gpu.twin.backend import open_backend
from kvtwin.gpu.twin.execution import content_shape
from kvtwin.gpu.twin.foresight import foresee
from kvtwin.gpu.twin.layers import dealt, executed_layers
from kvtwin.gpu.twin.validate import Depth, same_outputs, validate_decisions
from kvtwin.sim import BlockGroups, RunConfig, layer_groups
from kvtwin.sim.drive import drive
from kvtwin.traces import Trace, TraceChunk, UserError

DEPTH = Depth(audit_steps=2, output_steps=4, num_rows=3)
# The last layer of a group of fewer has no partner in its place of the pool.
CASES: dict[str, tuple[BlockGroups, int, dict[str, Any]]] = {
    "one window": (BlockGroups((9,)), 2, {"num_gpu_blocks_override": 40}),
    "a window of a token": (BlockGroups((1,)), 1, {"num_gpu_blocks_override": 40}),
    "beside all": (BlockGroups((7, None), (1, 1)), 3, {}),
    "padded": (BlockGroups((None, 20, 8), (3, 2, 3)), 8, {}),
    "asynchronous": (BlockGroups((None, 6), (1, 1)), 2, {"async_scheduling": True}),
}


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with open_backend("cpu", "torch") as found:
        yield found


@pytest.mark.parametrize("case", CASES)
def test_all_policies_attend_alike(
    case: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, num_layers, fields = CASES[case]
    shape, trace = grouped(monkeypatch, groups, num_layers), make_trace(2, 12, content=True)
    usual = {"block_size": 4, "num_gpu_blocks_override": 45}
    first, seen = None, {}
    # One of them recomputes what it has no cache of.
    for policy in (
        "no-cache" if case == "one window" else "paged",
        "vllm-v1",
        "vllm-v1-no-caching",
    ):
        foresight = foresee(trace, config_of(policy, **usual | fields), drive)
        found, _, outputs = validate_decisions(foresight, shape, backend, DEPTH, paranoid=True)
        assert found.passed, [
            policy,
            *found.findings,
            *(p for p in found.predictions if p.passed is False),
        ]
        seen[policy] = set(foresight.log.actions), foresight.summary, found.audit
        first = first or outputs
        same = same_outputs(policy, "torch", outputs, first, "the first")
        assert same.passed
        assert int(same.note.split()[0]) > 10
    actions, summary, audit = seen["vllm-v1"]
    hits = case != "a window of a token"
    assert ("skip" in actions, summary["hit_tokens"] > 0) == (hits, hits)
    if hits:
        assert min(audit["cached"], audit["shared"], audit["num_outputs_behind_a_share"]) > 0
    if len(groups.windows) > 1:
        assert summary["preemptions"] > 0
    assert summary["num_finished"] > 8


GROUPS = st.sampled_from(
    [
        BlockGroups((5,)),
        BlockGroups((None, 3), (1, 1)),
        BlockGroups((10, None), (1, 2)),
        BlockGroups((1, None), (1, 1)),
        BlockGroups((4, 9), (3, 1)),
        BlockGroups((None, 20, 8), (3, 2, 3)),
        BlockGroups((17, 17, None), (1, 1, 2)),
    ]
)


@given(
    seed=st.integers(0, 10**6),
    groups=GROUPS,
    policy=st.sampled_from(["vllm-v1", "vllm-v1", "vllm-v1-no-caching", "paged", "contiguous"]),
    num=st.integers(1, 10),
    content=st.booleans(),
    block_size=st.sampled_from([1, 3, 4, 8]),
    num_slots=st.sampled_from([150, 300]),
    is_async=st.booleans(),
    scheduling_policy=st.sampled_from(["fcfs", "priority"]),
)
@settings(max_examples=examples(6))
def test_any_execution_is_what_was_simulated(
    seed: int,
    groups: BlockGroups,
    policy: str,
    num: int,
    content: bool,
    block_size: int,
    num_slots: int,
    is_async: bool,
    scheduling_policy: str,
) -> None:
    config = config_of(
        policy,
        block_size=block_size,
        num_gpu_blocks_override=num_slots * len(groups.windows) // block_size,
        async_scheduling=is_async,
        scheduling_policy=scheduling_policy,
    )
    with pytest.MonkeyPatch.context() as patch, open_backend("cpu", "torch") as backend:
        shape = grouped(patch, groups, sum(groups.token_slots))
        foresight = foresee(make_trace(seed, num, content), config, drive)
        found, _, _ = validate_decisions(foresight, shape, backend, DEPTH, paranoid=True)
    assert found.passed, [*found.findings[:5], *(p for p in found.predictions if not p.passed)]


def test_what_was_never_written_is_computed_in_each_group(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The case of test_validate.py with a second group, whose window has all of it in sight: twice as many blocks."""
    shape = grouped(monkeypatch, BlockGroups((None, 18), (1, 1)), 2)
    config = config_of(
        "vllm-v1",
        num_gpu_blocks_override=21,
        block_size=2,
        max_num_seqs=4,
        max_num_batched_tokens=5,
        long_prefill_token_threshold=4,
        scheduling_policy="priority",
    )
    chunk = TraceChunk(*np.array([[0, 1], [20, 1], [1, 3], [-1, -1]]), priority=np.array([3, 0]))
    foresight = foresee(Trace("made", "synthetic", (chunk,)), config, drive)
    every_step = Depth(audit_steps=1, output_steps=1)
    found, execution, _ = validate_decisions(foresight, shape, backend, every_step, paranoid=False)
    hits = [
        (hit.key, hit.group, hit.positions.tolist()) for hit in execution.executor.unwritten_hits
    ]
    assert hits == [((0, 0), 0, [13, 14, 15]), ((0, 0), 1, [13, 14, 15])]
    assert any("request 0 group 1: 3 of the tokens found" in line for line in found.findings)
    measured = {prediction.name: prediction for prediction in found.predictions}
    assert measured["findings"].measured == measured["outputs with NaN"].measured == 0
    assert measured["largest error"].passed


def test_layers_are_dealt_over_the_groups() -> None:
    groups = BlockGroups((9, None, 4), (2, 3, 1))
    assert dealt(groups, 6) == [0, 1, 2, 0, 1, 1]
    assert dealt(groups, 8) == [0, 1, 2, 0, 1, 1, 0, 1]
    config = RunConfig("gemma-3-27b", "h100", policy="vllm-v1", num_gpu_blocks_override=700)
    shape = content_shape(config, None, 2, 1, 16)
    of_model = layer_groups(config)
    assert shape.windows.count(1024) == 52, "the whole model has as many as it has"
    assert shape.windows.count(0) == 10
    layers = executed_layers(shape, of_model)
    nums = [sum(layer.group == group for layer in layers) for group in range(7)]
    assert nums == list(of_model.token_slots)
    places = [layer.place for layer in layers if layer.group == 4]
    assert places == list(range(8))
    # In one table the same layers have the pool to themselves.
    assert [layer.place for layer in executed_layers(shape, BlockGroups())] == list(range(62))
    with pytest.raises(UserError, match="in 7 groups, of which each must have one: use --layers 7"):
        content_shape(config, 6, 2, 1, 16)
