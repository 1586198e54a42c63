"""SIGTERM ends the program as Ctrl-C does: nothing half-written, no process left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvtwin.analysis.cli import main

# Only so that a program that does not end fails the test instead of blocking it.
PATIENCE_S = 120


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--policy", "killing_policy:KillOwnProcess"],
        ["compare", "--policies", "killing_policy:KillParent,paged,static"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_sigterm_cleans_up(arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from kvtwin.analysis.cli import main; main()", *arguments]
    done = subprocess.run(
        [*command, "--num-requests", "5", "--out", "new/out"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["busy"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "busy").read_text()), 0)


def test_a_caller_in_python_keeps_its_signals(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        main(["policies"])
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr().out
