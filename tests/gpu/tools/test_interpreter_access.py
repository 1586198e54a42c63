"""A triton whose interpreter differs is refused with the version and both parameter lists."""

import subprocess
import sys

import pytest
import torch
import triton
from tiny_kernels import fail_kernel
from triton.runtime import interpreter as module

from kvtwin.gpu.tools.interpreter import InterpreterMismatch, interpreter, replaced, unwrapped


def test_a_changed_method_is_named_with_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module.InterpreterBuilder, "create_masked_load", lambda self, ptrs, mask, cache: None
    )
    with pytest.raises(InterpreterMismatch) as caught:
        interpreter()
    assert str(caught.value) == (
        f"triton {triton.__version__}: interpreter.InterpreterBuilder.create_masked_load has parameters "
        "(self ptrs mask cache), expected (self ptrs mask other cache_policy is_volatile) as in triton 3.9.0: "
        "install that version, or adapt kvtwin.gpu.tools"
    )


def test_a_missing_method_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(module, "_patch_lang")
    with pytest.raises(InterpreterMismatch, match=r"_patch_lang has parameters \(absent\)"):
        interpreter()


def test_a_compiling_process_is_told_what_to_set() -> None:
    code = "from kvtwin.gpu.tools.interpreter import interpreter; interpreter()"
    run = subprocess.run(
        [sys.executable, "-c", code], env={}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert "set TRITON_INTERPRET=1 before triton is imported" in run.stderr.splitlines()[-1]


def test_replaced_puts_back_what_was_there_after_an_error() -> None:
    class Owner:
        value = 1

    def fail() -> None:
        with replaced(Owner, value=2):
            raise KeyError(Owner.value)

    with pytest.raises(KeyError, match="2"):
        fail()
    assert Owner.value == 1


def test_an_error_of_a_kernel_comes_out_as_it_was_raised() -> None:
    """Two calls deep, where the interpreter wraps twice."""
    with pytest.raises(module.InterpreterError):
        fail_kernel[(1,)](torch.zeros(1))
    with pytest.raises(ValueError, match=r"^planted$"), unwrapped(interpreter(), ValueError):
        fail_kernel[(1,)](torch.zeros(1))
    with pytest.raises(module.InterpreterError), unwrapped(interpreter(), KeyError):
        fail_kernel[(1,)](torch.zeros(1))
