"""`kvtwin size` in this process."""

from typing import Any

import command
import pytest

LLAMA = ["--model", "llama-3.1-8b", "--gpu", "a100-80gb", "--max-model-len", "32768"]
GIB = 2**30


def invoke(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return command.invoke(capsys, "size", *arguments)


def facts(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    return command.facts(capsys, "size", *arguments)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line about a mistake."""
    code, out, err = invoke(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), (code, out, err)
    return err


def terms_of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {term["name"]: term for term in found["terms"]}
