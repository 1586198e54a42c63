"""SIGTERM, Ctrl-C or a closed terminal end the program: nothing half-written, no process left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvtwin.analysis.cli import main
from kvtwin.analysis.ending import end_on_signals

# Only so that a program that does not end fails the test instead of blocking it.
PATIENCE_S = 120


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["run", "--policy", "killing_policy:KillOwnProcess"], 143),
        (["compare", "--policies", "killing_policy:KillParent,paged,static"], 143),
        (["compare", "--policies", "killing_policy:InterruptGroup,paged,static"], 130),
        (["compare", "--policies", "killing_policy:HangUpGroup,paged,static"], 129),
        (["compare", "--policies", "killing_policy:TerminateGroup,paged,static"], 143),
    ],
    ids=lambda value: str(value[2]) if isinstance(value, list) else None,
)
def test_a_signal_cleans_up(arguments: list[str], code: int, tmp_path: Path) -> None:
    done = ended_by_signal(arguments, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["busy"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "busy").read_text()), 0)


def test_a_signal_waits_for_the_end_of_an_import(tmp_path: Path) -> None:
    done = ended_by_signal(["run", "--policy", "killing_import:Waiting"], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")
    assert not list(tmp_path.iterdir())


def ended_by_signal(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """kvtwin in `folder`, in a process group of its own."""
    # Whoever runs the tests may have had them ignored, as nohup does.
    heard = "import signal as s; [s.signal(n, s.SIG_DFL) for n in (s.SIGINT, s.SIGTERM, s.SIGHUP)]"
    program = f"{heard}; from kvtwin.analysis.cli import main; main()"
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(
        [*command, "--num-requests", "5", "--out", "new/out"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        start_new_session=True,
    )


def test_a_signal_that_the_caller_ignores_stays_ignored() -> None:
    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_on_signals()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert callable(signal.getsignal(signal.SIGTERM))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_caller_in_python_keeps_its_signals(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        main(["policies"])
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [("run", "--out", "o\udcff"), ("trace", "info", "t\udcff.csv")]
)
def test_names_that_are_not_utf8_are_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    err = capsys.readouterr().err
    assert (stop.value.code, err.count("\n")) == (2, 1)
    assert "\\udcff' is not UTF-8; rename it" in err.replace(".csv", "")
