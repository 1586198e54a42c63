"""What a killed writer leaves beside its file goes with the next one, and nothing else does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvtwin.traces import UserError
from kvtwin.traces.abandoned import held
from kvtwin.traces.files import whole_file

# Only so that a program that does not end fails the test instead of blocking it.
PATIENCE_S = 120
KILLED = """
import os, signal
from kvtwin.traces.files import whole_file

with whole_file("trace.csv", force=True) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_writer(folder: Path) -> Path:
    """What a process leaves that is killed while it writes trace.csv."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=folder, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == -signal.SIGKILL
    (left,) = folder.glob(".trace.csv.*")
    assert left.read_bytes() == b"half"
    return left


def write(path: Path) -> None:
    with whole_file(path, force=True) as file:
        file.write(b"whole")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    left = killed_writer(tmp_path)
    write(tmp_path / "other.csv")
    assert names(tmp_path) == [left.name, "other.csv"]
    (tmp_path / f".trace.csv.{os.getppid()}.unfinished").write_text("of the living")
    (tmp_path / ".trace.csv.0.unfinished").write_text("no number of a process")
    write(tmp_path / "trace.csv")
    kept = [f".trace.csv.{os.getppid()}.unfinished", ".trace.csv.0.unfinished"]
    assert names(tmp_path) == sorted([*kept, "other.csv", "trace.csv"])
    assert (tmp_path / "trace.csv").read_bytes() == b"whole"


def test_a_file_that_somebody_holds_stays(tmp_path: Path) -> None:
    """A process in another container may have a number that nobody has here."""
    left = killed_writer(tmp_path)
    with held(left):
        write(tmp_path / "trace.csv")
    assert names(tmp_path) == [left.name, "trace.csv"]
    write(tmp_path / "trace.csv")
    assert names(tmp_path) == ["trace.csv"]


def test_who_writes_holds_the_file(tmp_path: Path) -> None:
    with whole_file(tmp_path / "trace.csv", force=True):
        (mine,) = tmp_path.iterdir()
        as_of_another = mine.with_name(".trace.csv.999999999.unfinished")
        mine.rename(as_of_another)  # a number that nobody has
        write(tmp_path / "trace.csv")
        assert names(tmp_path) == [as_of_another.name, "trace.csv"]
        as_of_another.rename(mine)
    assert names(tmp_path) == ["trace.csv"]


def test_a_refused_write_removes_nothing(tmp_path: Path) -> None:
    left = killed_writer(tmp_path)
    (tmp_path / "trace.csv").write_text("there")
    with pytest.raises(UserError, match="exists already"):
        whole_file(tmp_path / "trace.csv", force=False).__enter__()
    assert names(tmp_path) == [left.name, "trace.csv"]
