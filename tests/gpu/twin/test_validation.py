"""What a validation says of itself: who passed, and that a file holds all of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvtwin.gpu.twin.validation import PolicyValidation, Prediction, Validation

MAKESPAN = Prediction("paged", "time", "makespan", 2.0, 2.1, "s", 0.2, "torch", noise=0.05)
POLICY = PolicyValidation("paged", "torch", (MAKESPAN,), {"num_instants": 3})
WHOLE = Validation(
    command="kvtwin validate trace.csv",
    device="a CPU",
    versions={"torch": "2.13.0"},
    shape={"model": "opt-13b", "num_layers": 2},
    trace={"name": "trace", "num_requests": 8},
    cost={"name": "fitted", "calibrated": True},
    prediction_sha256="0" * 64,
    policies=(POLICY,),
    notes=("a note",),
)


@pytest.mark.parametrize(
    ("predicted", "measured", "tolerance", "passed"),
    [
        (2.0, 2.5, 0.5, True),  # a tolerance includes its end
        (2.5, 2.0, 0.5, True),
        (2.0, 2.75, 0.5, False),
        (2.0, 1.25, 0.5, False),
        (7.0, 7.0, 0.0, True),
        (7.0, 8.0, 0.0, False),
        (2.0, None, 0.5, False),
        (2.0, float("nan"), 0.5, False),
        (2.0, 99.0, None, None),
        (2.0, None, None, None),
    ],
)
def test_a_prediction_passes_within_its_tolerance(
    predicted: float, measured: float | None, tolerance: float | None, passed: bool | None
) -> None:
    made = replace(MAKESPAN, predicted=predicted, measured=measured, tolerance=tolerance)
    assert made.passed is passed


def test_one_failure_or_finding_fails_the_whole() -> None:
    assert WHOLE.passed
    failed = replace(POLICY, predictions=(MAKESPAN, replace(MAKESPAN, measured=9.0)))
    found = replace(POLICY, findings=("step 3: slot 7 holds poison",))
    unjudged = replace(POLICY, predictions=(replace(MAKESPAN, measured=9.0, tolerance=None),))
    assert not replace(WHOLE, policies=(POLICY, failed)).passed
    assert not replace(WHOLE, policies=(found, POLICY)).passed
    assert replace(WHOLE, policies=(unjudged,)).passed
    assert not replace(WHOLE, policies=()).passed


def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    WHOLE.save(tmp_path / "validation.json")
    raw = json.loads((tmp_path / "validation.json").read_text())
    assert Validation.from_dict(raw) == WHOLE
    assert (raw["schema_version"], raw["passed"]) == (1, True)
    (prediction,) = raw["policies"][0]["predictions"]
    assert prediction["difference"] == pytest.approx(0.1)
    assert prediction["passed"] is True
