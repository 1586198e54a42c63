"""A coefficients file that says what it was fitted to: what that means for a run, and broken ones."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvtwin.sim import RunConfig, load_cost, simulate
from kvtwin.sim.cost import CostModel, CostTerm
from kvtwin.sim.fit_record import FitError, FitRecord
from kvtwin.traces import UserError, synthesize

RECORD = FitRecord(
    source="kvtwin calibrate --device cpu",
    device="a processor",
    backend="torch",
    dtype="float32",
    model="OPT-13B",
    num_layers=4,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    block_size=16,
    date="2026-01-02",
    versions={"torch": "2.13.0"},
    num_points=61,
    in_sample=FitError(0.01, 0.02),
    cross_validated=FitError(0.03, 0.04),
    noise=FitError(0.005, 0.006),
)
TERM = CostTerm("fitted", 1 << 40, (0,) * 6)
FITTED = CostModel("cpu", True, (TERM,), ("a note",), RECORD)


def config(path: Path, **fields: Any) -> RunConfig:
    return RunConfig(
        **(
            {"model": "opt-13b", "gpu": "a100-40gb", "cost": str(path), "max_model_len": 2048}
            | fields
        )
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    FITTED.save(tmp_path / "fit.json")
    return tmp_path / "fit.json"


@pytest.mark.parametrize(
    "record",
    [RECORD, replace(RECORD, num_layers=None, num_heads=None, block_size=None, noise=None)],
)
def test_a_file_holds_the_record(record: FitRecord, tmp_path: Path) -> None:
    whole = replace(FITTED, fit=record)
    whole.save(tmp_path / "fit.json")
    assert CostModel.from_file(tmp_path / "fit.json") == whole


def test_a_run_of_what_was_measured_is_calibrated(path: Path) -> None:
    first, *rest = load_cost(config(path)).notes
    assert first == (
        "step times fitted to 61 steps on a processor (torch, float32, 2026-01-02): error on steps left out of "
        "the fit 3.0 % on average, 4.0 % at the 95th percentile; noise of repeats 0.5 % on average, 0.6 % at "
        "the 95th percentile"
    )
    assert rest == ["a note"]
    assert load_cost(config(path)).calibrated


@pytest.mark.parametrize(
    ("fields", "calibrated", "said"),
    [
        ({"model": "llama-3.1-8b"}, False, "fitted to OPT-13B, and this is Llama-3.1-8B"),
        ({"tensor_parallel_size": 2}, False, "fitted to one GPU, and these are 2"),
        ({"quantization": "awq"}, False, "fitted to weights as shipped, and these are awq"),
        ({"block_size": 32}, True, "fitted to blocks of 16, and these have 32 slots"),
    ],
)
def test_another_setting_is_told_of(
    fields: dict[str, Any], calibrated: bool, said: str, path: Path
) -> None:
    cost = load_cost(config(path, **fields))
    assert cost.calibrated is calibrated
    assert said in " ".join(cost.notes)
    assert len(cost.notes) == 3


def test_a_file_that_says_it_is_not_calibrated_is_believed(tmp_path: Path) -> None:
    replace(FITTED, calibrated=False).save(tmp_path / "fit.json")
    assert not load_cost(config(tmp_path / "fit.json")).calibrated


def test_a_run_directory_says_what_its_times_were_fitted_to(path: Path, tmp_path: Path) -> None:
    summary = simulate(synthesize("sharegpt-like", 3, 0), config(path), tmp_path / "run")
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert summary["calibrated"]
    assert run["config"]["cost_model"]["fit"]["device"] == "a processor"
    assert any("61 steps on a processor" in note for note in run["config"]["notes"])


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("", [], "fit is []; it must be a table"),
        ("device", "", "fit.device is ''; it must be a text"),
        ("model", None, "fit.model is None; it must be a text"),
        ("num_layers", 0, "fit.num_layers is 0; it must be a whole number of at least 1"),
        ("head_dim", "64", "fit.head_dim is '64'; it must be a whole number of at least 1"),
        ("num_points", True, "fit.num_points is True; it must be a whole number"),
        ("num_points", None, "fit.num_points is None; it must be a whole number"),
        ("versions", {"torch": 2}, "fit.versions is {'torch': 2}; it must be a table of texts"),
        (
            "noise",
            {"mean": 0.1},
            "fit.noise is {'mean': 0.1}; it must be a table with mean and p95",
        ),
        ("in_sample", {"mean": -1, "p95": 1}, "numbers of at least 0"),
        ("cross_validated", None, "fit.cross_validated is None; it must be a table"),
        ("devise", "x", "fit.devise is 'x'; it must be left out; known are source, device"),
    ],
)
def test_a_broken_record_is_refused(field: str, value: Any, said: str, path: Path) -> None:
    raw = json.loads(path.read_text())
    if not field:
        raw["fit"] = value
    elif value is None:
        del raw["fit"][field]
    else:
        raw["fit"][field] = value
    path.write_text(json.dumps(raw))
    with pytest.raises(UserError) as refused:
        load_cost(config(path))
    assert str(refused.value).startswith(f"--cost {path}: ")
    assert said in str(refused.value)
