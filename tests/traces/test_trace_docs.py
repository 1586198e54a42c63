"""docs/traces.md: its commands work, and its table names every format."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvtwin.analysis.cli import app
from kvtwin.traces import FORMATS, WRITABLE_FORMATS
from kvtwin.traces.sessions import COLUMNS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/traces.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", TEXT, re.M | re.S)


@pytest.mark.parametrize("block", BLOCKS)
def test_commands_run(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    monkeypatch.chdir(tmp_path)
    commands = block.splitlines()
    assert len(commands) >= 4
    for command in commands:
        arguments = command.removeprefix("kvtwin ").split()
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output


def test_every_format_is_explained() -> None:
    table = TEXT[TEXT.index("| name |") : TEXT.index("Rows that a format")]
    named = set(re.findall(r"^\| (.*?) \|", table, re.M))
    assert {name.strip("` ") for cell in named for name in cell.split(",")} >= set(FORMATS)
    for name in (*WRITABLE_FORMATS, *COLUMNS):
        assert f"`{name}`" in TEXT, name
