"""Predicted and measured times of an execution, by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kvtwin.gpu.twin.content import ContentShape
from kvtwin.gpu.twin.step_times import (
    FITTED_ERROR,
    TOLERANCE,
    RunTimes,
    StepTimes,
    time_predictions,
)
from kvtwin.sim.cost import SHIFT, TOTALS, CostModel, CostTerm
from kvtwin.sim.fit_record import FitError, FitRecord
from kvtwin.sim.requests import RequestTable

MS = 1_000_000
SHAPE = ContentShape(4, 8, 8, 64, torch.float32)
# A constant of 1 ms and 10 us a decode.
TERM = CostTerm("all", MS << SHIFT, (0, 0, 0, 10_000 << SHIFT, 0, 0))
RECORD = FitRecord(
    *(
        "calibrate",
        "a processor",
        "torch",
        "float32",
        "OPT-13B",
        4,
        8,
        8,
        64,
        16,
        "2026-01-02",
        {},
        9,
    ),
    FitError(0.01, 0.02),
    FitError(0.03, 0.04),
    None,
)
FITTED = CostModel("cpu", True, (TERM,), (), RECORD)


def table(first_ms: tuple[float, float], last_ms: tuple[float, float]) -> RequestTable:
    """Two requests, that come at 0 and 4 ms and have 3 tokens and 1."""
    made = RequestTable([0, 4 * MS], [5, 5], [3, 1], [3, 1], [9, 9], accepted=[0, 1])
    for row in (0, 1):
        made.first_token_ns[row] = round(first_ms[row] * MS)
        made.finished_ns[row] = round(last_ms[row] * MS)
    return made


def steps(repeat_ns: list[int] | None = None) -> StepTimes:
    """Three steps from 0 on, that last 1 ms, 1 ms and 2 ms; then, from 6 ms on, one of 1 ms.

    The second request waits for it since 4 ms, when a part of the device that is not simulated ran.
    """
    totals = [[0, 0, 0, num, 0, 0] for num in (0, 1, 1, 0)]
    measured_ns = [MS, MS, 2 * MS, MS]
    return StepTimes.of(FITTED, [0, MS, 2 * MS, 6 * MS], totals, measured_ns, repeat_ns)


EXECUTED = table((1, 7), (4, 7))


def test_what_users_wait_for() -> None:
    """TTFT 1 and 3 ms; one request has gaps, 2 in 3 ms."""
    assert RunTimes.of(EXECUTED) == RunTimes(makespan=7, ttft=2, tpot=1.5)


def test_as_if_steps_had_lasted_as_in_the_repetition() -> None:
    """Ends at 2, 3, 5 ms; the idle time ends at 6 ms as before, and the last step at 9 ms."""
    again = steps([2 * MS, MS, 2 * MS, 3 * MS])
    ends, repeated = again.repeated_ends_ns()
    assert (ends // MS).tolist() == [1, 2, 4, 7]
    assert (repeated // MS).tolist() == [2, 3, 5, 9]
    assert RunTimes.of(EXECUTED, again) == RunTimes(makespan=9, ttft=3.5, tpot=1.5)


def test_idle_time_is_used_up_by_slower_steps() -> None:
    """Three steps until 8 ms: the last one follows at once."""
    _, repeated = steps([4 * MS, 2 * MS, 2 * MS, MS]).repeated_ends_ns()
    assert (repeated // MS).tolist() == [4, 6, 8, 9]


def test_faster_steps_follow_each_other_and_wait_for_who_comes() -> None:
    """Only in front of the last step nothing ran, so that it alone begins when it did."""
    _, repeated = steps([MS // 2, MS // 2, MS, MS]).repeated_ends_ns()
    assert repeated.tolist() == [MS // 2, MS, 2 * MS, 7 * MS]


def test_the_same_durations_again_change_nothing() -> None:
    again = steps([MS, MS, 2 * MS, MS])
    assert RunTimes.of(EXECUTED, again) == RunTimes.of(EXECUTED)


def test_predictions_by_hand() -> None:
    """Predicted 1, 1.01, 1.01 and 1 ms: errors of 0, 1, 49.5 and 0 %."""
    predicted = table((1.5, 7.5), (3.5, 8))
    made = {
        p.name: p
        for p in time_predictions(
            "paged",
            "torch",
            FITTED,
            predicted,
            EXECUTED,
            steps([2 * MS, MS, 2 * MS, 3 * MS]),
            SHAPE,
            16,
        )
    }
    error = made["mean step time error"]
    assert error.measured == pytest.approx((0 + 1 + 49.5 + 0) / 4)
    assert error.predicted == pytest.approx(3)
    assert error.noise == pytest.approx((100 + 0 + 0 + 200) / 4)
    assert error.passed is None
    # Between the third and the fourth of the sorted four, 0.85 of the way.
    most = made["p95 step time error"]
    assert most.measured == pytest.approx(1 + 0.85 * (49.5 - 1))
    assert most.predicted == pytest.approx(4)
    assert most.noise == pytest.approx(100 + 0.85 * (200 - 100))
    assert error.note == most.note == FITTED_ERROR
    makespan, ttft, tpot = made["makespan"], made["mean TTFT"], made["mean TPOT"]
    assert (makespan.predicted, makespan.measured, makespan.noise) == (8, 7, 2)
    assert makespan.tolerance == pytest.approx(8 * TOLERANCE + 2)
    assert makespan.passed
    assert (ttft.predicted, ttft.measured, ttft.noise) == (2.5, 2, 1.5)
    assert ttft.passed
    assert (tpot.predicted, tpot.measured, tpot.noise) == (1, 1.5, 0)
    assert tpot.passed is False
    assert len(made) == 5


def test_without_calibration_or_repetition_nothing_is_judged() -> None:
    cost = replace(FITTED, calibrated=False, fit=None)
    made = time_predictions("paged", "torch", cost, EXECUTED, EXECUTED, steps(), SHAPE, 1)
    assert all(p.passed is None and p.noise is None for p in made)


def test_other_blocks_than_those_of_the_fit_are_told_of() -> None:
    for block_slots, said in ((16, ""), (1, "executed in blocks of 1, fitted to blocks of 16")):
        made = time_predictions(
            "orca-max", "torch", FITTED, EXECUTED, EXECUTED, steps(), SHAPE, block_slots
        )
        assert all(p.note.endswith(said) for p in made)
        assert {p.note for p in made if p.unit == "ms"} == {said}
    served = replace(FITTED, fit=replace(RECORD, block_size=None))  # by nobody who knew its blocks
    made = time_predictions("paged", "torch", served, EXECUTED, EXECUTED, steps(), SHAPE, 1)
    assert {p.note for p in made if p.unit == "ms"} == {""}


@pytest.mark.parametrize(
    ("backend", "changed", "said"),
    [
        ("torch", {"num_layers": 2}, "executed: 2 layers, fitted to: 4 layers"),
        ("torch", {"num_heads": 16}, "executed: 16 query heads, fitted to: 8 query heads"),
        ("torch", {"num_kv_heads": 4}, "executed: 4 KV heads, fitted to: 8 KV heads"),
        ("torch", {"head_dim": 32}, "executed: 32 channels a head, fitted to: 64 channels a head"),
        ("torch", {"dtype": torch.float16}, "executed: float16, fitted to: float32"),
        ("cuda", {}, "executed: cuda, fitted to: torch"),
    ],
)
def test_what_was_not_fitted_to_is_not_judged(
    backend: str, changed: dict[str, Any], said: str
) -> None:
    shape = replace(SHAPE, **changed)
    made = time_predictions("paged", backend, FITTED, EXECUTED, EXECUTED, steps(), shape, 16)
    assert all(p.passed is None and p.note.endswith(said) for p in made)
    served = replace(FITTED, fit=replace(RECORD, num_layers=None))
    made = time_predictions("paged", "torch", served, EXECUTED, EXECUTED, steps(), SHAPE, 16)
    assert {p.passed for p in made if p.unit == "ms"} == {True}


def test_columns_are_those_of_the_file() -> None:
    columns = steps().columns()
    assert list(columns) == ["start_ns", *TOTALS, "predicted_ns", "measured_ns", "repeat_ns"]
    assert columns["repeat_ns"] is None
    assert columns["predicted_ns"].tolist() == [MS, 1_010_000, 1_010_000, MS]


def test_a_repetition_of_other_steps_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="3 steps were repeated of 4"):
        steps([MS, MS, MS])
