"""The script for a GPU machine, gone through on a CPU without what that machine has not got."""

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from kvtwin.gpu.device_report import render

ROOT = Path(__file__).parents[2]
# Everything of the project's own dependencies but numpy, torch and triton.
ABSENT = ("pandas", "pyarrow", "simpy", "matplotlib", "typer", "rich", "jinja2", "hypothesis")
SCRIPT = f"""
import os, runpy, sys
for name in {ABSENT}:
    sys.modules[name] = None
sys.path = [place for place in sys.path if not os.path.exists(os.path.join(place, "kvtwin"))]
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in str(finder).lower()]
sys.argv = ["device_run.py", *sys.argv[1:]]
runpy.run_path({str(ROOT / "gpu" / "device_run.py")!r}, run_name="__main__")
"""


def device_run(folder: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and lines of a run in `folder`, in a process without TRITON_INTERPRET."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "run.jsonl", *arguments],
        cwd=folder,
        env=environment | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, [
        json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    code, lines = device_run(tmp_path_factory.mktemp("dry"), "--dry-run")
    assert code == 0
    return lines


def test_a_dry_run_does_everything(dry: list[dict[str, Any]]) -> None:
    kinds = [line["kind"] for line in dry]
    assert kinds[0] == "machine"
    assert kinds[-1] == "end"
    assert dry[-1]["all_passed"]
    checks = [line for line in dry if line["kind"] == "check"]
    assert {line["backend"] for line in checks} == {"triton-interpret", "torch"}
    assert all(line["verdict"] == "pass" for line in checks)
    benched = [line for line in dry if line["kind"] == "bench"]
    assert {line["operation"] for line in benched} == {
        "read",
        "paged_decode",
        "contiguous_decode",
        "torch",
    }
    assert all(line["duration_ns"] is None for line in benched)
    calibrated = [line for line in dry if line["kind"] == "calibrated"]
    assert [line["cost"]["fit"]["block_size"] for line in calibrated] == [16, 1]
    for line in calibrated:
        assert line["num_steps"] == line["of"] > 20
        assert line["cost"]["fit"]["backend"] == "torch"
        assert not {"kvtwin", "simpy"} & line["cost"]["fit"]["versions"].keys()
    validated = [line for line in dry if line["kind"] == "validated"]
    assert [line["policy"] for line in validated] == ["paged", "contiguous", "orca-pow2"]
    for line in validated:
        assert line["passed"]
        kinds_judged = {p["kind"] for p in line["predictions"] if p["passed"]}
        assert kinds_judged == {"decisions", "contents", "parts", "outputs"}
        times = [p for p in line["predictions"] if p["kind"] == "time"]
        assert len(times) == 5
        # Each policy's times come from the fit to its own blocks.
        assert not any("executed in blocks" in p["note"] for p in times)
        assert all(p["passed"] is None and p["noise"] is not None for p in times)
    times = [line["at_s"] for line in dry]
    assert times == sorted(times)


def test_the_report_of_a_dry_run_says_so(dry: list[dict[str, Any]]) -> None:
    text = "\n".join(render(dry))
    assert "nothing here was measured on a GPU" in text
    assert text.count("| pass |") == sum(line["kind"] in ("check", "validated") for line in dry)
    assert "| decode_context_slots |" in text
    assert "| at once | orca-pow2 | torch | " in text
    assert "not measured on a GPU | not measured on a GPU" in text
    assert "did not come to its end" not in text


def test_a_cut_off_run_has_a_report_that_says_so(dry: list[dict[str, Any]]) -> None:
    text = "\n".join(render(dry[:5]))
    assert "The timings did not come to their end." in text
    assert "The checks did not come to their end." in text
    assert "The run did not come to its end." in text


@pytest.mark.parametrize(
    ("arguments", "before", "message"),
    [
        (["none/run.jsonl", "--dry-run"], "", "none/run.jsonl: No such file or directory"),
        (["run.jsonl", "--seconds", "nan"], "", "--seconds nan: must be a number of 0 or more"),
        (["run.jsonl", "--seconds", "-1"], "", "--seconds -1.0: must be a number of 0 or more"),
        (
            ["run.jsonl", "--dry-run"],
            "import sys; sys.modules['triton'] = None",
            "triton is not installed; torch, triton, numpy are needed",
        ),
    ],
)
def test_what_cannot_begin_is_told_and_leaves_no_file(
    arguments: list[str], before: str, message: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\n{SCRIPT}", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == f"device_run.py: error: {message}"
    assert list(tmp_path.iterdir()) == []


def test_results_of_an_earlier_run_are_not_lost(tmp_path: Path) -> None:
    earlier = tmp_path / "run.jsonl"
    earlier.write_text("{}\n", encoding="utf-8")
    code, lines = device_run(tmp_path, "--dry-run", "--seconds", "0")
    assert (code, lines) == (2, [{}])


def test_no_time_leaves_one_line_of_each(tmp_path: Path) -> None:
    """At least one check and one timing, then the limit is obeyed."""
    code, lines = device_run(tmp_path, "--dry-run", "--seconds", "0")
    assert code == 1  # too little was checked
    assert not lines[-1]["quick_check_complete"]
    assert [line["kind"] for line in lines] == [
        "machine",
        "check",
        "checked",
        "calibrated",
        "calibrated",
        "validated",
        "all_validated",
        "bench",
        "benched",
        "end",
    ]
    assert lines[3]["cost"] is lines[4]["cost"] is None
    for place in (2, 6, 8):
        assert not lines[place]["complete"]
    text = "\n".join(render(lines))
    for what in ("timings", "validations", "checks"):
        assert f"The time was over before the rest of the {what} could run." in text


def test_without_a_gpu_one_line_says_so(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    code, lines = device_run(tmp_path)
    assert code == 1
    line, end = lines
    assert line["kind"] == "error"
    assert (end["kind"], end["all_passed"]) == ("end", False)
    assert "--dry-run" in line["message"]
    text = "\n".join(render(lines))
    assert "FAILED: torch finds no CUDA device" in text
    assert "The time was over" not in text


def test_a_kernel_that_does_not_compile_spoils_only_its_own_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from triton.runtime.errors import OutOfResources

    from kvtwin.gpu import kernels
    from kvtwin.gpu.timed_run import timed_run

    def fails(*arguments: object, **options: object) -> None:
        raise OutOfResources(300_000, 232_448, "shared memory")

    monkeypatch.setattr(kernels, "merge_partials", fails)
    monkeypatch.setattr(kernels, "paged_decode", fails)
    file = StringIO()
    assert timed_run(file, 210.0, dry_run=True) == 1
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    failed = [line for line in lines if line.get("verdict") == "fail"]
    assert {(line["backend"], line["kernel"]) for line in failed} == {
        ("triton-interpret", "merge_partials")
    }
    assert all("OutOfResources" in line["problem"] for line in failed)
    errors = [line["message"] for line in lines if line["kind"] == "error"]
    assert [text.split("(")[0] for text in errors] == ["paged_decode BenchShape"] * 2
    assert all("OutOfResources: out of resource: shared memory" in text for text in errors)
    operations = [line["operation"] for line in lines if line["kind"] == "bench"]
    assert operations == ["read", *["contiguous_decode", "torch"] * 2]
    assert lines[-1]["kind"] == "end"
    assert (lines[-1]["all_passed"], lines[-1]["quick_check_complete"]) == (False, True)


def test_what_breaks_in_the_twin_spoils_only_its_own_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a calibration, times are the roofline's."""
    from kvtwin.gpu import device_twin
    from kvtwin.gpu.timed_run import timed_run

    def fails(*arguments: object, **options: object) -> None:
        raise RuntimeError("no memory")

    validate = device_twin.validate_decisions

    def validate_or_fail(foresight: Any, *arguments: Any, **options: Any) -> Any:
        if foresight.assembly.config.policy == "contiguous":
            fails()
        return validate(foresight, *arguments, **options)

    monkeypatch.setattr(device_twin, "measure_steps", fails)
    monkeypatch.setattr(device_twin, "validate_decisions", validate_or_fail)
    file = StringIO()
    assert timed_run(file, 450.0, dry_run=True) == 1
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    errors = [line["message"] for line in lines if line["kind"] == "error"]
    assert errors == [
        "calibrate: RuntimeError: no memory",
        "validate at once, contiguous: RuntimeError: no memory",
    ]
    validated = [line for line in lines if line["kind"] == "validated"]
    assert [line["policy"] for line in validated] == ["paged", "orca-pow2"]
    for line in validated:
        assert {"time"} == {p["kind"] for p in line["predictions"] if p["passed"] is None}
    assert "FAILED: calibrate: RuntimeError: no memory" in "\n".join(render(lines))
    assert not lines[-1]["all_passed"]
    assert lines[-1]["quick_check_complete"]


def test_a_prediction_that_fails_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention whose last token is off, in all executions; nothing raises."""
    from kvtwin.gpu.timed_run import timed_run
    from kvtwin.gpu.twin import executor

    run_step = executor.run_step

    def wrong(layers: Any, step: Any, ops: Any, out: Any) -> None:
        run_step(layers, step, ops, out)
        out[0, -1] += 1

    monkeypatch.setattr(executor, "run_step", wrong)
    file = StringIO()
    assert timed_run(file, 450.0, dry_run=True) == 1
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    validated = [line for line in lines if line["kind"] == "validated"]
    assert [line["passed"] for line in validated] == [False] * 3
    assert not [line for line in lines if line["kind"] == "error"]
    assert not lines[-1]["all_passed"]
    assert "- at once, paged: largest error: predicted 0.00, measured " in "\n".join(render(lines))
