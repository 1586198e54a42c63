"""What the README and the pages of docs/ tell people to type works."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = "\n".join(path.read_text() for path in (ROOT / "README.md", ROOT / "docs/sizing.md"))
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```$", TEXT, re.M | re.S)
COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
POLICIES = [text for kind, text in BLOCKS if kind == "python"]


def shell(command: str, folder: Path) -> str:
    """Standard output of a command line, with this interpreter's scripts first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_blocks_were_found() -> None:
    assert len(POLICIES) == 1
    assert sum(command.startswith("make ") for command in COMMANDS) == 2
    assert sum("kvtwin " in command for command in COMMANDS) == 12
    assert len(COMMANDS) == 14


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")])
def test_make_targets_exist(command: str) -> None:
    assert shell(command.replace("make ", "make --dry-run --always-make "), ROOT)


@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith("make ")])
def test_commands_run_and_end_with_a_verdict(command: str, tmp_path: Path) -> None:
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    (tmp_path / "places.py").write_text(POLICIES[0])
    printed = shell(command, tmp_path)
    if "policies" not in command.split():
        last = printed.rstrip().splitlines()[-1]
        assert last.endswith("."), last
    if "--out" in command:
        out = tmp_path / command.split("--out ")[1]
        assert (out / "report.html").is_file() or (out / "run.json").is_file()
        assert not list(out.parent.glob(".*")), "nothing half-written is left"


def test_the_policy_of_the_readme_is_short() -> None:
    code = [line for line in POLICIES[0].splitlines() if line.strip()]
    assert len(code) <= 40, len(code)
