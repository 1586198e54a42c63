"""Checks of 32-bit integer arithmetic in interpreted kernels, where a wrapped offset reads other memory."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .interpreter import innermost, interpreter, replaced


class IntegerOverflow(ArithmeticError):
    """An integer of a kernel did not fit its type: operation, type and program in one line."""


@contextmanager
def int32_checks() -> Iterator[None]:
    """Raise IntegerOverflow when + - * of 32-bit (or narrower) integers wraps, in any lane.

    A cast to a narrower integer that changes the value raises as well. Masked lanes count: a GPU
    computes their offsets, too. Integers that are Python's in the interpreter (loop variables, and
    arithmetic among them and constants) have no width there and are not checked.
    """
    module = interpreter()
    builder = module.interpreter_builder
    create_int_cast = module.InterpreterBuilder.create_int_cast

    def checked_cast(self: Any, src: Any, dst_type: Any, is_signed: bool) -> Any:
        cast = create_int_cast(self, src, dst_type, is_signed)
        lost = cast.data.astype(src.data.dtype) != src.data
        if lost.any():
            raise IntegerOverflow(f"{src.data[lost][0]} does not fit {dst_type.scalar} in a cast")
        return cast

    options = dataclasses.replace(builder.options, debug=True, sanitize_overflow=True)
    try:
        with (
            replaced(builder, options=options),
            replaced(module.InterpreterBuilder, create_int_cast=checked_cast),
        ):
            yield
    except module.InterpreterError as error:
        cause = innermost(error)
        # The interpreter's own check is a device_assert, known by its words.
        if isinstance(cause, IntegerOverflow) or "overflow detected" in str(cause):
            raise IntegerOverflow(f"{cause} in program {builder.grid_idx}") from error
        raise
