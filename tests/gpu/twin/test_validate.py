"""Every policy is executed as it was simulated: decisions, contents, parts and outputs."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from twin_cases import CACHING, DURATION_NS, POLICIES, SHAPE, SMALL_BLOCKS, config_of, make_trace

from kvtwin.gpu.check.backends import Backend
from kvtwin.gpu.twin import executor
from kvtwin.gpu.twin.backend import open_backend
from kvtwin.gpu.twin.driver import GivenClock, MeasuredClock
from kvtwin.gpu.twin.execution import execute
from kvtwin.gpu.twin.follower import DecisionFollower
from kvtwin.gpu.twin.foresight import Foresight, decisions_sha256, foresee
from kvtwin.gpu.twin.outputs import OutputCheck
from kvtwin.gpu.twin.step import StepTensors
from kvtwin.gpu.twin.validate import (
    Depth,
    decisions_of_measured,
    same_outputs,
    validate_decisions,
)
from kvtwin.sim.drive import drive
from kvtwin.sim.engine import Engine
from kvtwin.traces import Trace, TraceChunk

DEPTH = Depth(audit_steps=3, output_steps=2, num_rows=6)


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with open_backend("cpu", "torch") as found:
        yield found


@pytest.fixture(scope="module")
def uncached(backend: Backend) -> OutputCheck:
    """Outputs of the first trace, every prefix recomputed in every step."""
    foresight = foresee(make_trace(0), config_of("no-cache"), drive)
    return validate_decisions(foresight, SHAPE, backend, DEPTH, paranoid=False)[2]


@pytest.mark.parametrize("case", POLICIES)
def test_an_execution_is_what_was_simulated(
    case: str, backend: Backend, uncached: OutputCheck
) -> None:
    foresight = foresee(make_trace(0), config_of(case), drive)
    found, execution, outputs = validate_decisions(foresight, SHAPE, backend, DEPTH, paranoid=True)
    assert found.passed, [*found.findings, *(p for p in found.predictions if p.passed is False)]
    assert found.backend == "torch"
    summary = execution.summary
    assert summary == foresight.summary
    assert summary["num_finished"] == 24
    if case in ("paged", "contiguous") or case.startswith("vllm-v0"):
        assert summary["preemptions"] > 0
    if case.endswith((", samples", ", beams")):
        assert {"share", "copy", "swap_out", "swap_in"} <= set(foresight.log.actions)
        assert found.audit["shared"] > 0
    if case.startswith("contiguous"):
        assert summary["moved_slots"] > 0
    assert found.audit["num_outputs_compared"] > 80
    # Rounding of float16 around values up to 2: more means that the reference is of something else.
    assert max(output.tolerance for output in outputs.samples.values()) < 4 * 2**-11 * 2
    if case != "no-cache":
        assert found.audit["num_instants"] >= len(foresight.durations_ns) // 3
        assert min(found.audit["live"], found.audit["unwritten"] + found.audit["free"]) > 0
    # Outputs are compared of what was cut into chunks, moved, copied and swapped.
    for action in {"move", "share", "copy", "swap_in"} & set(foresight.log.actions):
        num_steps = len(
            {
                step
                for step, other in zip(foresight.log.steps, foresight.log.actions, strict=True)
                if other == action
            }
        )
        assert num_steps / 2 < found.audit[f"num_outputs_behind_a_{action}"] <= num_steps, action
    sampled = DEPTH.rows_of(24)
    work = np.concatenate(execution.executor.work_log)
    chunks = work[(work[:, 2] > 0) & (work[:, 3] > 1), 0].tolist()
    assert not chunks or sampled & set(chunks)
    same = same_outputs(case, "torch", outputs, uncached, "no-cache")
    assert same.passed
    assert int(same.note.split()[0]) > (6 if "beams" in case else 50)


def _by_row(work_log: list[Any]) -> dict[int, Any]:
    """[num_steps, 4] of each row, in order."""
    work = np.concatenate(work_log)
    return {row: work[work[:, 0] == row] for row in set(work[:, 0].tolist())}


@pytest.mark.parametrize("case", ["slots", "vllm-v1", "paged", *CACHING])
def test_requests_that_begin_alike(case: str, backend: Backend) -> None:
    config = config_of(case, **(SMALL_BLOCKS if case in CACHING else {}))
    foresight = foresee(make_trace(1, content=True), config, drive)
    found, execution, _ = validate_decisions(foresight, SHAPE, backend, DEPTH, paranoid=True)
    assert found.passed, found.findings
    actions = set(foresight.log.actions)
    assert ("copy" in actions) == case.endswith((", samples", ", beams"))
    assert ({"swap_out", "swap_in"} <= actions) == (case in CACHING and case[-5:] != ", one")
    assert (execution.summary["hit_tokens"] > 0) == (case != "paged")
    first = {row: log[0, 2] for row, log in _by_row(execution.executor.work_log).items()}
    sampled_hits = [row for row in DEPTH.rows_of(24) if first.get(row, 0) > 0]
    assert bool(sampled_hits) == (case != "paged"), "outputs are compared of who has found a prefix"
    assert (found.audit["cached"] > 0) == (case != "paged")
    assert (found.audit["shared"] > 0) == case.startswith("vllm-")


def perturbed(num: int, seed: int) -> list[int]:
    """Step durations between a tenth and ten times the usual one."""
    factors = 10.0 ** np.random.default_rng(seed).uniform(-1, 1, num)
    return [round(DURATION_NS * factor) for factor in factors]


@pytest.mark.parametrize(
    "case", ["static", "orca-pow2", "contiguous, compacting", "paged", "vllm-v0, slow link"]
)
def test_decisions_are_the_same_for_the_same_durations(case: str, backend: Backend) -> None:
    trace, config = make_trace(2, span_ns=2 * 10**9), config_of(case)
    usual = decisions_sha256(foresee(trace, config, drive).log)
    seen = set()
    for seed in range(3):
        durations = perturbed(2000, seed)
        foresight = foresee(trace, config, drive, durations)
        execution = execute(trace, config, SHAPE, backend, GivenClock(durations))
        found = execution.assembly.log
        assert found is not None
        assert decisions_sha256(found) == decisions_sha256(foresight.log)
        assert execution.assembly.recorder.rows == foresight.assembly.recorder.rows
        seen.add(decisions_sha256(found))
    assert len(seen) == 3, "the durations made no difference"
    assert usual not in seen


@pytest.mark.parametrize("case", ["paged", "contiguous", "vllm-v0, slow link"])
def test_what_was_measured_simulates_alike(case: str, backend: Backend) -> None:
    trace, config = make_trace(3), config_of(case)
    execution = execute(trace, config, SHAPE, backend, MeasuredClock())
    measured = [time.measured_ns for time in execution.executor.times]
    assert len(set(measured)) > 10
    foresight = foresee(trace, config, drive, measured)
    assert execution.assembly.log is not None
    assert decisions_sha256(execution.assembly.log) == decisions_sha256(foresight.log)
    assert execution.end_ns == foresight.end_ns
    assert execution.summary == foresight.summary
    if case == "vllm-v0, slow link":
        assert foresight.summary["swapping"]["waited_ns"] > 0
        again = execute(trace, config, SHAPE, backend, GivenClock(measured))
        assert [step.totals for step in again.executor.times] == [
            step.totals for step in execution.executor.times
        ]


def test_other_decisions_at_the_devices_own_speed_fail(backend: Backend) -> None:
    trace, config = make_trace(3), config_of("paged")
    execution = execute(trace, config, SHAPE, backend, GivenClock(perturbed(2000, 0)))
    for seed, passed in ((0, True), (1, False)):
        foresight = foresee(trace, config, drive, perturbed(2000, seed))
        (made,) = decisions_of_measured(foresight, execution, "torch")
        assert made.passed is passed


def test_what_was_never_written_is_told_of_and_computed(backend: Backend) -> None:
    """Request 0 is given 4 tokens in the fourth step, whose memory request 1 takes before it is over.

    It finds 16 tokens when it comes back, 3 of which nobody has written (see docs/vllm_v1.md).
    """
    config = config_of(
        "vllm-v1",
        num_gpu_blocks_override=11,
        block_size=2,
        max_num_seqs=4,
        max_num_batched_tokens=5,
        long_prefill_token_threshold=4,
        scheduling_policy="priority",
    )
    chunk = TraceChunk(*np.array([[0, 1], [20, 1], [1, 3], [-1, -1]]), priority=np.array([3, 0]))
    foresight = foresee(Trace("made", "synthetic", (chunk,)), config, drive)
    every_step = Depth(audit_steps=1, output_steps=1)
    found, execution, _ = validate_decisions(foresight, SHAPE, backend, every_step, paranoid=False)
    (hit,) = execution.executor.unwritten_hits
    assert (hit.key, hit.positions.tolist()) == ((0, 0), [13, 14, 15])
    assert not found.passed
    assert any("3 of the tokens found in the pool, the first at" in line for line in found.findings)
    measured = {prediction.name: prediction for prediction in found.predictions}
    assert measured["found in the pool, never written"].measured == 3
    assert measured["found in the pool, never written"].passed is False
    # They are there when they are read: slots hold their tokens, and outputs are right.
    assert measured["findings"].measured == measured["outputs with NaN"].measured == 0
    assert measured["largest error"].passed
    assert measured["counts that differ"].passed is False, "the recorder takes them for cached"


def _unpoisoned(foresight: Foresight, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DecisionFollower, "_clear", lambda *_: None)


def _unfinished(foresight: Foresight, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(executor.DeviceExecutor, "finish", lambda _: None)


def _miscounted(foresight: Foresight, patch: pytest.MonkeyPatch) -> None:
    parts = Engine.parts

    def wrong(engine: Engine) -> dict[str, int]:
        counted = parts(engine)
        return counted | {"live": counted["live"] + 1, "free": counted["free"] - 1}

    patch.setattr(Engine, "parts", wrong)


def _other_scale(foresight: Foresight, patch: pytest.MonkeyPatch) -> None:
    put = executor.put_on_device

    def scaled(*args: Any) -> StepTensors:
        step = put(*args)
        return replace(step, query=step.query * 1.05)

    patch.setattr(executor, "put_on_device", scaled)


def _other_row(foresight: Foresight, patch: pytest.MonkeyPatch) -> None:
    rows = foresight.assembly.recorder.rows
    rows[-1] = replace(rows[-1], end_ns=rows[-1].end_ns + 1)


def _other_block(foresight: Foresight, patch: pytest.MonkeyPatch) -> None:
    foresight.log.firsts[40] += 1


def _other_end(foresight: Foresight, patch: pytest.MonkeyPatch) -> None:
    object.__setattr__(foresight, "end_ns", foresight.end_ns - 1)


@pytest.mark.parametrize(
    ("tamper", "failed"),
    [
        (_unpoisoned, "findings"),
        (_unfinished, "findings"),
        (_miscounted, "counts that differ"),
        (_other_scale, "largest error"),
        (_other_row, "timeline rows that are the same"),
        (_other_block, "first ones that are the same"),
        (_other_end, "end of the last step"),
    ],
)
def test_each_prediction_fails_alone(
    tamper: Any, failed: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    foresight = foresee(make_trace(0), config_of("paged"), drive)
    tamper(foresight, monkeypatch)
    found, _, _ = validate_decisions(foresight, SHAPE, backend, DEPTH, paranoid=False)
    assert [p.name for p in found.predictions if p.passed is False] == [failed]
    assert not found.passed
    told = failed in ("findings", "counts that differ", "largest error")
    assert bool(found.findings) == told, "where something is wrong on the device, lines say what"


def test_outputs_that_are_no_numbers_fail_without_one(
    backend: Backend, uncached: OutputCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*args: Any, out: torch.Tensor, **fields: Any) -> torch.Tensor:
        return out  # as it was made

    monkeypatch.setattr(backend.ops, "paged_decode", nothing)
    foresight = foresee(make_trace(0), config_of("paged"), drive)
    found, execution, outputs = validate_decisions(foresight, SHAPE, backend, DEPTH, paranoid=False)
    measured = {prediction.name: prediction for prediction in found.predictions}
    num_alone = sum(int((work[:, 3] == 1).sum()) for work in execution.executor.work_log)
    assert measured["outputs with NaN"].measured == num_alone > 300
    same = same_outputs("paged", "torch", outputs, uncached, "no-cache")
    for prediction in (measured["largest error"], same):
        assert (prediction.measured, prediction.passed) == (None, False)
        assert "NaN" in prediction.note


def test_outputs_of_which_none_are_the_same_tokens_were_not_compared(
    backend: Backend, uncached: OutputCheck
) -> None:
    foresight = foresee(make_trace(5, num=2), config_of("paged"), drive)
    outputs = validate_decisions(foresight, SHAPE, backend, DEPTH, paranoid=False)[2]
    outputs.samples = {token + b"?": output for token, output in outputs.samples.items()}
    same = same_outputs("paged", "torch", outputs, uncached, "no-cache")
    assert (same.measured, same.passed) == (None, False)


def test_an_execution_that_goes_another_way_fails(backend: Backend) -> None:
    trace: Trace = make_trace(0)
    foresight = foresee(trace, config_of("paged"), drive)
    foresight.durations_ns[3] *= 9
    found, _, _ = validate_decisions(foresight, SHAPE, backend, DEPTH, paranoid=False)
    assert not found.passed
    failed = {prediction.name for prediction in found.predictions if prediction.passed is False}
    assert {"first ones that are the same", "end of the last step"} <= failed
    assert not found.findings, "the device did what it was told"
