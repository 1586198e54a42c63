"""What every reader checks, and the words in which it complains."""

import json
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import numpy as np

from ..arrays import Int64
from ..errors import UserError
from ..trace import MAX_SPAN_NS

# Far above any context length in use; a value beyond it is a broken file, not a long prompt.
MAX_TOKENS = 10_000_000
MAX_SAMPLES = 10_000  # likewise, of outputs asked of one prompt
MAX_SPAN_S = MAX_SPAN_NS // 10**9

_DECODER = json.JSONDecoder()  # json.loads guesses encodings first

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


def token_problem(field: str, value: str, least: int = 1) -> str:
    """What is wrong with a token count that was found not to be from `least` to MAX_TOKENS."""
    try:
        too_large = Decimal(value) > MAX_TOKENS
    except InvalidOperation:  # not a number, or a NaN
        too_large = False
    if too_large:
        return f"{field} is {shown(value)}; the limit is {MAX_TOKENS:,} tokens"
    return f"{field} is {shown(value)}; it must be a whole number of at least {least}"


def time_problem(field: str, value: str, unit: str) -> str:
    """What is wrong with a time that was found not to be a number from 0 to the limit."""
    return (
        f"{field} is {shown(value)}; it must be a time from 0 to the limit of {MAX_SPAN_S:,} s,"
        f" written as {unit}"
    )


def parsed_json(text: bytes) -> Any:
    """The JSON value of a text, or None: no format here has a use for a lone null."""
    try:
        return _DECODER.decode(text.decode())
    except (ValueError, RecursionError):  # ValueError: bad JSON, bad UTF-8, absurdly long numbers
        return None


def json_text(value: object) -> str:
    """A JSON value as messages quote it, before `shown`."""
    # An int may have more digits than Python agrees to print; its size is enough then.
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    return json.dumps(value)


class Clock:
    """Times of a file relative to its first, checked to be in order, chunk by chunk."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._first_ns: int | None = None
        self._last_ns = 0
        self._last_text = self._last_place = ""

    def arrivals(self, times_ns: Int64, text_of: Callable[[int], str], place: Place) -> Int64:
        """The next times, at least one. Raises UserError, naming both rows, if one is too early."""
        if self._first_ns is None:
            self._first_ns = self._last_ns = int(times_ns[0])
        backwards = np.flatnonzero(np.diff(times_ns, prepend=self._last_ns) < 0)
        if len(backwards):
            row = int(backwards[0])
            before, where = (
                (text_of(row - 1), place(row - 1)) if row else (self._last_text, self._last_place)
            )
            raise UserError(
                f"{place(row)}: {self._field} is {shown(text_of(row))}, earlier than"
                f" {shown(before)} at {where}; sort the file by {self._field}"
            )
        last = len(times_ns) - 1
        self._last_ns, self._last_text, self._last_place = (
            int(times_ns[last]),
            text_of(last),
            place(last),
        )
        return times_ns - self._first_ns
