"""The one door to triton's interpreter, whose inside is private: what is patched there is checked first."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

WRITTEN_FOR = "3.9.0"
# Everything the tools of this folder call or replace, with its parameters in the version above.
EXPECTED_PARAMETERS = {
    "_patch_lang": "fn",
    "_LangPatchScope.restore": "self",
    "GridExecutor.__call__": "self args_dev kwargs",
    "GridExecutor._init_args_hst": "self args_dev kwargs",
    "GridExecutor._restore_args_dev": "self args_dev args_hst kwargs kwargs_hst",
    "InterpreterBuilder.binary_op": "self lhs rhs op",
    "InterpreterBuilder.unary_op": "self arg op",
    "InterpreterBuilder.cast_impl": "self src dst_type",
    "InterpreterBuilder.create_assert": "self condition message",
    "InterpreterBuilder.create_atomic_cas": "self ptr cmp val sem scope",
    "InterpreterBuilder.create_atomic_rmw": "self rmwOp ptr val mask sem scope",
    "InterpreterBuilder.create_dot": "self a b d input_precision max_num_imprecise_acc",
    "InterpreterBuilder.create_fma": "self x y z",
    "InterpreterBuilder.create_fp_to_fp": "self src dst_type rounding_mode",
    "InterpreterBuilder.create_int_cast": "self src dst_type is_signed",
    "InterpreterBuilder.create_masked_load": "self ptrs mask other cache_policy is_volatile",
    "InterpreterBuilder.create_masked_store": "self ptrs value mask cache_policy",
    "TensorHandle": "data dtype attr",
}


class InterpreterMismatch(RuntimeError):
    """The interpreter is not there, or not as these tools know it: one line that says what to do."""


def interpreter() -> ModuleType:
    """Return `triton.runtime.interpreter` of a process that interprets its kernels.

    Raises InterpreterMismatch if triton was imported without TRITON_INTERPRET=1, and if its
    interpreter has other methods or parameters than the ones these tools replace.
    """
    import triton
    from triton.runtime import interpreter as module

    # triton decides when it is imported: its own jit functions, such as zeros, show which way.
    if isinstance(triton.language.standard.zeros, triton.runtime.JITFunction):
        raise InterpreterMismatch(
            "kernels are compiled in this process: set TRITON_INTERPRET=1 before triton is imported"
        )
    for path, parameters in EXPECTED_PARAMETERS.items():
        _expect(module, triton.__version__, path, parameters)
    return module


@contextmanager
def replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Replace attributes of a class, module or object, and put the old ones back.

    A function passes for the one it replaces, so that the tools can be stacked in any order.
    """
    before = {name: inspect.getattr_static(owner, name) for name in attributes}
    try:
        for name, value in attributes.items():
            if callable(value) and callable(before[name]):
                value.__wrapped__ = before[name]
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextmanager
def unwrapped(module: ModuleType, kind: type[Exception]) -> Iterator[None]:
    """Let launches raise an error of `kind` as it is.

    The interpreter wraps what a kernel raises in an error of its own, once per nested call.
    """
    launch = module.GridExecutor.__call__

    def launch_unwrapped(self: Any, *args_dev: Any, **kwargs: Any) -> None:
        try:
            launch(self, *args_dev, **kwargs)
        except module.InterpreterError as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            if isinstance(cause, kind):
                raise cause from None
            raise

    with replaced(module.GridExecutor, __call__=launch_unwrapped):
        yield


def _expect(module: ModuleType, version: str, path: str, parameters: str) -> None:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name, None)
    seen = " ".join(inspect.signature(found).parameters) if callable(found) else "absent"
    if seen != parameters:
        raise InterpreterMismatch(
            f"triton {version}: interpreter.{path} has parameters ({seen}), expected ({parameters}) as in "
            f"triton {WRITTEN_FOR}: install that version, or adapt kvtwin.gpu.tools"
        )
