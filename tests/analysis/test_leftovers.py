"""What a killed run leaves beside its --out goes with the next run, and nothing else does."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvtwin.analysis.output_dir import replacing
from kvtwin.traces.abandoned import held

# Only so that a program that does not end fails the test instead of blocking it.
PATIENCE_S = 120
LIVING = """
import sys
from pathlib import Path
from kvtwin.analysis.output_dir import replacing

with replacing(Path("out"), force=True) as staging:
    (staging / "run.json").write_text("of the living")
    print(staging.name, flush=True)
    sys.stdin.readline()
"""


def write(out: Path) -> None:
    with replacing(out, force=True) as staging:
        (staging / "run.json").write_text("new")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture(scope="module")
def dead() -> int:
    """Number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(PATIENCE_S)
    return process.pid


def leftover(out: Path, process: int, kind: str = "partial") -> Path:
    path = out.with_name(f".{out.name}.{process}.{kind}")
    (path / "paged").mkdir(parents=True)
    (path / "paged" / "timeline.parquet").write_text("half")
    return path


@pytest.mark.parametrize(
    ("killed", "next_one"),
    [
        (["run", "--policy", "killing_policy:KillOwnProcessAtOnce"], ["run"]),
        (
            ["compare", "--policies", "killing_policy:KillParentAtOnce,paged"],
            ["compare", "--policies", "paged,static"],
        ),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_killed_run_leaves_nothing_behind_the_next(
    killed: list[str], next_one: list[str], tmp_path: Path
) -> None:
    def kvtwin(arguments: list[str]) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", "from kvtwin.analysis.cli import main; main()"]
        return subprocess.run(
            [*program, *arguments, "--num-requests", "5", "--out", "out"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    done = kvtwin(killed)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (left,) = [name for name in names(tmp_path) if name != "busy"]
    assert re.fullmatch(r"\.out\.\d+\.partial", left)
    done = kvtwin(next_one)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path) == ["busy", "out"]


def test_a_living_run_keeps_its_directory(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LIVING],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as living:
        assert living.stdin is not None
        assert living.stdout is not None
        staging = tmp_path / living.stdout.readline().strip()
        write(tmp_path / "out")
        assert names(tmp_path) == [staging.name, "out"]
        assert (staging / "run.json").read_text() == "of the living"
        living.stdin.write("go on\n")
        living.stdin.close()
        assert living.wait(PATIENCE_S) == 0
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out" / "run.json").read_text() == "of the living"


def test_a_directory_that_somebody_holds_stays(dead: int, tmp_path: Path) -> None:
    """A process in another container may have a number that nobody has here."""
    left = leftover(tmp_path / "out", dead)
    with held(left):
        write(tmp_path / "out")
        assert names(tmp_path) == [left.name, "out"]
    write(tmp_path / "out")
    assert names(tmp_path) == ["out"]


def test_the_number_of_a_living_process_is_enough(tmp_path: Path) -> None:
    """Not every file system has locks."""
    left = leftover(tmp_path / "out", os.getppid())
    write(tmp_path / "out")
    assert names(tmp_path) == [left.name, "out"]


def test_a_leftover_under_our_own_number_is_removed(tmp_path: Path) -> None:
    """As in containers, where a program has the same number every time."""
    leftover(tmp_path / "out", os.getpid())
    write(tmp_path / "out")
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["run.json"]


@pytest.mark.parametrize("name", ["a+b", "results.v2", "[x]"])
def test_only_directories_of_the_same_name_are_removed(
    name: str, dead: int, tmp_path: Path
) -> None:
    out = tmp_path / name
    leftover(out, dead)
    others = [leftover(tmp_path / other, dead) for other in ("aab", "results-v2", "x", name + ".2")]
    (tmp_path / f".{name}.{dead}.kept").mkdir()
    (tmp_path / f".{name}.0{dead}.partial").write_text("a file, and no number of a process")
    write(out)
    kept = [path.name for path in others]
    kept += [f".{name}.{dead}.kept", f".{name}.0{dead}.partial", name]
    assert names(tmp_path) == sorted(kept)


KILLED_IN_A_SWAP = """
import os, signal, sys
from pathlib import Path
from kvtwin.analysis import output_dir

def kill(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

at = sys.argv[1]
if at == "new results in place":
    output_dir.shutil.rmtree = kill
with output_dir.replacing(Path("out"), force=True) as staging:
    (staging / "run.json").write_text("of the killed")
    if at == "old results aside":
        Path.rename, rename = lambda path, to: (rename(path, to), kill()), Path.rename
"""


@pytest.mark.parametrize("at", ["old results aside", "new results in place"])
def test_results_put_aside_go_once_others_have_come(at: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "run.json").write_text("old")
    command = [sys.executable, "-c", KILLED_IN_A_SWAP, at]
    killed = subprocess.run(command, cwd=tmp_path, timeout=PATIENCE_S, check=False)
    assert killed.returncode == -signal.SIGKILL
    (aside,) = tmp_path.glob(".out.*.replaced")
    assert (aside / "run.json").read_text() == "old"
    if not out.exists():  # then these are the only results
        with pytest.raises(ZeroDivisionError), replacing(out, force=True):
            assert 1 / 0
        assert names(tmp_path) == [aside.name]
        write(out)
        assert names(tmp_path) == [aside.name, "out"]
    write(out)
    assert names(tmp_path) == ["out"]
    assert (out / "run.json").read_text() == "new"


def test_what_kvtwin_did_not_write_stays(dead: int, tmp_path: Path) -> None:
    left = leftover(tmp_path / "out", dead)
    (left / "paged" / "notes.txt").write_text("mine")
    link = tmp_path / f".out.{dead + 1}.partial"
    link.symlink_to(left, target_is_directory=True)
    write(tmp_path / "out")
    assert names(tmp_path) == sorted([left.name, link.name, "out"])
