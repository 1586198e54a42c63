"""`kvtwin validate` and `kvtwin run --device`: files, lines, exit codes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from command import invoke as kvtwin

from kvtwin.gpu.twin.validation import Validation

SETTING = (
    *("--workload", "sharegpt-like", "--num-requests", "6", "--max-tokens", "12"),
    *("--model", "opt-125m", "--gpu", "l4", "--num-gpu-blocks-override", "80"),
    *("--max-model-len", "640", "--cost", "constant:3000000", "--device", "cpu"),
    *("--layers", "1", "--heads", "2", "--head-dim", "16"),
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("validate") / "out"


def test_all_predictions_hold(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("validate", *SETTING, "--policies", "paged,no-cache", "--out", out)
    code, text, _ = kvtwin(capsys, *arguments, "--audit-steps", "2")
    assert code == 0, text
    *lines, report, verdict = text.splitlines()
    lines, notes = (
        [line for line in lines if line.startswith("Note: ") == noted] for noted in (False, True)
    )
    title, header = lines[:2]
    assert title.strip() == "paged, executed with torch"
    assert header.split() == (
        ["prediction", "predicted", "measured", "tolerance", "unit", "verdict"]
    )
    assert "Note: not measured on a GPU" in notes
    assert not any("rejected" in note for note in notes), "no request was"
    # Measured and tolerance stand in their columns: 0 of 0 findings, an error of less than 1.
    findings, worst = (
        next(line for line in lines if line.startswith(name))
        for name in ("findings ", "largest error ")
    )
    assert findings[header.index("measured") : header.index("unit")].split() == ["0", "0"]
    assert worst[: header.index("unit")].split()[-1] == "1"
    assert [line.strip() for line in lines if "executed with" in line] == [
        "paged, executed with torch",
        "no-cache, executed with torch",
    ]
    assert report == f"Report: {out / 'report.html'}"
    assert "predictions of 2 policies hold, executed with torch on" in verdict
    found = json.loads((out / "validation.json").read_text())
    assert found["passed"]
    prediction = (out / "prediction.json").read_bytes()
    assert found["prediction_sha256"] == hashlib.sha256(prediction).hexdigest()
    assert json.loads(prediction)["policies"].keys() == {"paged", "no-cache"}
    for policy in found["policies"]:
        kinds = {one["kind"] for one in policy["predictions"]}
        kept = policy["policy"] == "paged"
        assert kinds == {"decisions", "parts", "outputs", "time"} | (
            {"contents"} if kept else set()
        )
        for place in ("predicted_dir", "executed_dir"):
            assert (out / policy[place] / "decisions.parquet").is_file()
        assert (out / policy["executed_dir"] / "steps.parquet").is_file()
    differences = [
        one["measured"]
        for one in found["policies"][1]["predictions"]
        if one["name"] == "largest difference from paged"
    ]
    assert len(differences) == 1
    assert 0 < differences[0] <= 1
    assert (out / "report.html").stat().st_size < 3 * 2**20


def test_a_prediction_that_fails_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvtwin.analysis import validating
    from kvtwin.gpu.twin.pool import DevicePool

    validate, predicted = validating.validate_decisions, []

    def look_first(*args: Any, **fields: Any) -> Any:
        (path,) = tmp_path.glob("*/prediction.json")
        predicted.append(hashlib.sha256(path.read_bytes()).hexdigest())
        return validate(*args, **fields)

    monkeypatch.setattr(validating, "validate_decisions", look_first)
    poison = DevicePool.poison
    monkeypatch.setattr(
        DevicePool, "poison", lambda pool, runs: poison(pool, runs[:-1] or [(0, pool.num_slots)])
    )
    arguments = ("validate", *SETTING, "--audit-steps", "2", "--out", tmp_path / "out", "--json")
    code, text, _ = kvtwin(capsys, *arguments)
    found: dict[str, Any] = json.loads(text)
    assert code == 1
    assert not found["passed"]
    assert predicted == [found["prediction_sha256"]], "written before anything was executed"
    assert any("expected" in line for line in found["policies"][0]["findings"])
    assert (tmp_path / "out" / "report.html").is_file(), "a failure is worth a report"


def test_rejected_requests_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ("validate", *SETTING, "--num-gpu-blocks-override", "4", "--out", out)
    code, text, _ = kvtwin(capsys, *arguments)
    assert code == 0, text
    summary = json.loads((out / "predicted" / "paged" / "run.json").read_text())["summary"]
    assert 0 < summary["num_rejected"] < 6
    note = f"requests rejected at arrival, so not executed: paged {summary['num_rejected']} of 6"
    assert f"Note: {note}\n" in text
    assert note in (out / "report.html").read_text()


def test_what_was_done_to_a_trace_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = tmp_path / "t.csv", tmp_path / "out"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,9,3\n4,9,3\n")
    arguments = ("validate", trace, "--rate", "inf", *SETTING[4:], "--out", out)
    code, text, _ = kvtwin(capsys, *arguments)
    assert code == 0, text
    note = "all arrivals are at once (--rate inf); in the trace they span 4.000 s"
    assert f"Note: {note}\n" in text
    assert note in (out / "report.html").read_text()


def test_run_on_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = kvtwin(capsys, "run", *SETTING, "--out", tmp_path / "out")
    assert code == 0
    assert "step times: measured (torch)" in text
    assert "Executed (torch) duration (s):" in text
    assert "UNCALIBRATED" not in text
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run["summary"]["executed_with"] == "torch"
    assert run["summary"]["num_finished"] == 6
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"steps.parquet", "decisions.parquet", "snapshots.parquet", "meta.json"} <= names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--layers", "2"), "without --device"),
        (("validate", *SETTING, "--layers", "0"), "--layers is 0"),
        (("validate", *SETTING, "--kv-heads", "3"), "2 heads cannot share 3 KV heads"),
        (("validate", *SETTING, "--head-dim", "3"), "--head-dim or --kv-heads"),
        (("validate", *SETTING, "--kv-cache-dtype", "fp8"), "--kv-cache-dtype is fp8"),
        (("validate", *SETTING, "--tensor-parallel-size", "2"), "--tensor-parallel-size is 2"),
        (("validate", *SETTING, "--backend", "cuda"), "backend cuda: choose"),
        (
            ("validate", *SETTING, "--max-model-len", "2"),
            "all 6 requests are rejected, the first because",
        ),
        (("validate", *SETTING, "--layers", "99999999"), "use fewer --layers or a smaller pool"),
        (
            ("validate", *SETTING, "--model", "gpt-oss-20b", "--layers", "99999999"),
            "use fewer --layers",
        ),
    ],
)
def test_what_cannot_be_executed_is_refused_in_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = kvtwin(capsys, *arguments, "--out", tmp_path / "out")
    assert (code, out, err.count("\n")) == (2, "", 1), (code, out, err)
    assert message in err
    assert not (tmp_path / "out").exists()


def test_a_policy_that_rejects_everything_is_named_and_the_others_are_validated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ("validate", *SETTING, "--num-gpu-blocks-override", "36")  # 576 slots, not 640
    code, text, _ = kvtwin(capsys, *arguments, "--policies", "orca-max,paged", "--out", out)
    assert code == 0, text
    title, *_, verdict = lines = text.splitlines()
    assert title.strip() == "paged, executed with torch"
    assert not any(line.startswith("orca-max") for line in lines)
    (note,) = (line for line in lines if "so there is nothing to execute" in line)
    assert note.startswith(
        "Note: under orca-max all 6 requests are rejected, the first because of largest need"
    )
    assert verdict.endswith("; nothing to execute under orca-max.")
    found = json.loads((out / "validation.json").read_text())
    assert found["not_executed"] == ["orca-max"]
    assert [policy["policy"] for policy in found["policies"]] == ["paged"]
    assert Validation.from_dict(found).to_dict() == found
    code, _, err = kvtwin(
        capsys, *arguments, "--policies", "orca-max,static", "--out", tmp_path / "x"
    )
    assert (code, err.count("\n")) == (2, 1)
    assert "under orca-max all 6 requests" in err
