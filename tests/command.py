"""`kvtwin` called in this process."""

import json
from typing import Any

import pytest

from kvtwin.analysis.cli import main


def invoke(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, out, err


def facts(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """What --json prints."""
    code, out, err = invoke(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return dict(json.loads(out))
