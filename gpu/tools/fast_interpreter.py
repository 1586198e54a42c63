"""Run interpreted kernels without patching the whole language again at every call."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from .interpreter import interpreter, replaced


class _NothingToRestore:
    def restore(self) -> None:
        """Leave the language patched: `fast_interpreter` restores it once, at its end."""


@contextmanager
def fast_interpreter() -> Iterator[None]:
    """Patch `triton.language` once for all launches inside.

    The stock interpreter looks through all members of the language at every launch and at every
    call of a jit function inside a kernel, such as `tl.max` or `tl.zeros`, which costs more than
    the arithmetic of a small tile.
    """
    module = interpreter()
    import triton.language as tl

    # Only the globals of the function are looked at; these two modules are all that is patched.
    scope = module._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    try:
        with replaced(module, _patch_lang=lambda fn: _NothingToRestore()):
            yield
    finally:
        scope.restore()
