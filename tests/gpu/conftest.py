"""These tests interpret their kernels, which triton decides when it is first imported."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="module")
def on() -> Iterator[dict[str, Any]]:
    """The backends of this machine by name, their arithmetic made right while a module's tests run."""
    from kvtwin.gpu.check import backends

    with backends("cpu") as found:
        yield {backend.name: backend for backend in found}


@pytest.fixture(params=["triton-interpret", "torch"])
def ops(request: pytest.FixtureRequest, on: dict[str, Any]) -> Any:
    """The operations of either backend."""
    return on[request.param].ops


@pytest.fixture
def guarded(on: dict[str, Any]) -> Iterator[Any]:
    """The interpreted kernels; every access is checked."""
    from kvtwin.gpu.tools.guard import MemoryGuard

    with MemoryGuard():
        yield on["triton-interpret"].ops
