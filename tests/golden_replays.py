"""Recorded runs of vLLM's scheduler, to be replayed by the command."""

import gzip
import shutil
from pathlib import Path

import pytest

from kvtwin.analysis.cli import main

GOLDEN = Path(__file__).parent / "golden"


def replay(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code of `kvtwin replay-golden`, and all that it prints."""
    with pytest.raises(SystemExit) as ended:
        main(["replay-golden", str(folder)])
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out + output.err


def unpack(name: str, folder: Path) -> None:
    """A copy of one of the project's recordings that may be changed."""
    for file in ("config.json", "trace.jsonl"):
        shutil.copy(GOLDEN / name / file, folder)
    steps = gzip.decompress((GOLDEN / name / "steps.jsonl.gz").read_bytes())
    (folder / "steps.jsonl").write_bytes(steps)
