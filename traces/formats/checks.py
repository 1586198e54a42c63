"""What every reader checks, and the words in which it complains."""

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import NoReturn

import numpy as np

from ..errors import UserError
from ..trace import MAX_SPAN_NS, Int64

# Far above any context length in use; a value beyond it is a broken file, not a long prompt.
MAX_TOKENS = 10_000_000
MAX_SPAN_S = MAX_SPAN_NS // 10**9

# Names the place of a row in messages: row number from 0 -> "trace.csv line 17".
Place = Callable[[int], str]


def shown(value: str) -> str:
    """A value from a file as messages quote it: short, printable, on one line."""
    if not value:
        return "empty"
    text = value if value.isprintable() else ascii(value)
    return text if len(text) <= 40 else f"{text[:40]}... ({len(value)} characters)"


def fail_at(place: str, problem: str) -> NoReturn:
    """Raise the error for one bad row."""
    raise UserError(f"{place}: {problem}; fix or remove the row")


def token_problem(field: str, value: str) -> str:
    """What is wrong with a token count that was found not to be from 1 to MAX_TOKENS."""
    try:
        too_large = Decimal(value) > MAX_TOKENS
    except InvalidOperation:  # not a number, or a NaN
        too_large = False
    if too_large:
        return f"{field} is {shown(value)}; the limit is {MAX_TOKENS:,} tokens"
    return f"{field} is {shown(value)}; it must be a whole number of at least 1"


def time_problem(field: str, value: str, unit: str) -> str:
    """What is wrong with a time that was found not to be a number from 0 to the limit."""
    return (
        f"{field} is {shown(value)}; it must be a time from 0 to the limit of {MAX_SPAN_S:,} s,"
        f" written as {unit}"
    )


def rebase(times_ns: Int64, field: str, text_of: Callable[[int], str], place: Place) -> Int64:
    """Times relative to the first. Raises UserError, naming both rows, if they are not in order."""
    backwards = np.flatnonzero(np.diff(times_ns) < 0)
    if len(backwards):
        row = int(backwards[0]) + 1
        raise UserError(
            f"{place(row)}: {field} is {shown(text_of(row))}, earlier than"
            f" {shown(text_of(row - 1))} at {place(row - 1)}; sort the file by {field}"
        )
    rebased: Int64 = times_ns - times_ns[0]
    return rebased
