"""`kvtwin size` in this process."""

import json
from typing import Any

import pytest

from kvtwin.analysis.cli import main

LLAMA = ["--model", "llama-3.1-8b", "--gpu", "a100-80gb", "--max-model-len", "32768"]
GIB = 2**30


def invoke(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["size", *arguments])
    out, err = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, out, err


def facts(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = invoke(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return dict(json.loads(out))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line about a mistake."""
    code, out, err = invoke(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), (code, out, err)
    return err


def terms_of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {term["name"]: term for term in found["terms"]}
