"""Checks of 32-bit integer arithmetic in interpreted kernels, where a wrapped offset reads other memory."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .interpreter import interpreter, replaced, unwrapped


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
    create_assert = module.InterpreterBuilder.create_assert

    def checked_cast(self: Any, src: Any, dst_type: Any, is_signed: bool) -> Any:
        cast = create_int_cast(self, src, dst_type, is_signed)
        lost = cast.data.astype(src.data.dtype) != src.data
        if lost.any():
            raise IntegerOverflow(
                f"{src.data[lost][0]} does not fit {dst_type.scalar} in a cast in program {self.grid_idx}"
            )
        return cast

    def checked_assert(self: Any, condition: Any, message: str) -> None:
        # The interpreter's own check of sums and products is an assertion, known by its words.
        if "overflow detected" in message and not condition:
            raise IntegerOverflow(f"{message} in program {self.grid_idx}")
        create_assert(self, condition, message)

    options = dataclasses.replace(builder.options, debug=True, sanitize_overflow=True)
    with (
        replaced(builder, options=options),
        replaced(
            module.InterpreterBuilder, create_int_cast=checked_cast, create_assert=checked_assert
        ),
        unwrapped(module, IntegerOverflow),
    ):
        yield
