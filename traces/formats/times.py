"""Columns of times as arrivals: numbers in some unit, or dates.

Both are exact. Decimal text becomes nanoseconds without a detour through floats: one rounding, half
up, at the first decimal place that is less than a nanosecond. Dates keep up to nine fraction digits,
zones have hours to 23 and minutes to 59 (RFC 3339, section 5.6), no zone means UTC.
"""

import re
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import Int64
from ..trace import MAX_SPAN_NS
from .checks import MAX_SPAN_S, Clock, fail_at, shown, time_problem
from .table import Table, first_false, to_int64

# Unit: its name in messages, decimal places of it that are whole nanoseconds.
UNITS = {
    "s": ("seconds", 9),
    "ms": ("milliseconds", 6),
    "us": ("microseconds", 3),
    "ns": ("nanoseconds", 0),
}
_STAMP = (
    r"^(?P<whole>[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.(?P<fraction>[0-9]{1,9}))?(?P<zone>Z|[+-](?:[01][0-9]|2[0-3]):?[0-5][0-9])?$"
)
# The same with a zone, for a quick look at a whole block.
_ZONED_STAMP = re.sub(r"\?P<\w+>", "?:", _STAMP).replace(")?$", ")$")


class NumberClock:
    """Arrivals from a column of numbers."""

    def __init__(self, column: str, unit: str = "s") -> None:
        self._column, self._unit = column, unit
        self._clock = Clock(column)

    def arrivals(self, table: Table) -> Int64:
        """The next rows. Raises UserError for what is no time, too late, or out of order."""
        times_ns = number_times(table, self._column, self._unit)
        return self._clock.arrivals(times_ns, lambda i: table.text(self._column, i), table.place)


class DateClock:
    """Arrivals from a column of dates with times."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._clock = Clock(column)
        self._first_s: int | None = None

    def arrivals(self, table: Table) -> Int64:
        """The next rows. Raises UserError for what is no date, too far off, or out of order."""
        seconds, fractions_ns = _dates(table, self._column)
        if self._first_s is None:
            self._first_s = int(seconds[0])
        seconds = seconds - self._first_s
        far = np.flatnonzero(np.abs(seconds) >= MAX_SPAN_S)
        if len(far):
            row = int(far[0])
            fail_at(
                table.place(row),
                f"{self._column} is {shown(table.text(self._column, row))},"
                f" {abs(int(seconds[row])):,} s from the first one; the limit is {MAX_SPAN_S:,} s",
            )
        times_ns = seconds * 10**9 + fractions_ns
        return self._clock.arrivals(times_ns, lambda i: table.text(self._column, i), table.place)


def number_times(table: Table, column: str, unit: str) -> Int64:
    """A column of times from 0 in nanoseconds. Raises UserError for what is no such time."""
    unit_name, places = UNITS[unit]
    texts = table.columns[column]
    if not pa.types.is_string(texts.type):
        texts = pc.cast(texts, pa.string())
    pattern = rf"^(?P<whole>[0-9]{{1,{18 - places}}})(?:\.(?P<fraction>[0-9]*))?$"
    parts = pc.extract_regex(texts, pattern)
    plain = pc.is_valid(parts)
    whole = to_int64(pc.fill_null(pc.struct_field(parts, "whole"), "0"))
    fraction = pc.fill_null(pc.struct_field(parts, "fraction"), "")
    # One digit more than whole nanoseconds: it decides the rounding.
    padded = pc.utf8_slice_codeunits(pc.utf8_rpad(fraction, places + 1, padding="0"), 0, places + 1)
    times_ns: Int64 = whole * 10**places + (to_int64(padded) + 5) // 10
    # Few or no rows: exponents such as 1e-05, signs, and what is not a time at all.
    for row in np.flatnonzero(~plain.to_numpy()).tolist():
        text = table.text(column, row)
        value = exact_ns(text, places)
        if value is None:
            fail_at(table.place(row), time_problem(column, text, unit_name))
        times_ns[row] = value
    return times_ns


def exact_ns(text: str, places: int) -> int | None:
    """Nanoseconds, or None if the text is no number from 0 to the limit."""
    if not text.isascii() or "_" in text:  # numbers to Decimal, but not to the other columns
        return None
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    # The order matters: comparing a NaN raises, scaling 1e999999 takes all memory.
    if not value.is_finite() or not 0 <= value <= MAX_SPAN_NS // 10**places:
        return None
    if value.adjusted() < -places - 2:
        return 0
    return int((value * 10**places).quantize(Decimal(1), rounding=ROUND_HALF_UP))


def _dates(table: Table, column: str) -> tuple[Int64, Int64]:
    """Seconds of UTC since 1970, and nanoseconds on top."""
    texts = table.columns[column]
    if pc.all(pc.match_substring_regex(texts, _ZONED_STAMP)).as_py():
        try:
            moments_ns = to_int64(pc.cast(texts, pa.timestamp("ns", "UTC")))
        except pa.ArrowInvalid:
            pass  # an impossible date, which is found below, or one beyond the years of int64
        else:
            return np.divmod(moments_ns, 10**9)
    parts = pc.extract_regex(texts, _STAMP)
    bad = first_false(pc.is_valid(parts))
    if bad is None:
        whole = pc.struct_field(parts, "whole")
        bad = _first_impossible(whole)
    if bad is not None:
        fail_at(
            table.place(bad),
            f"{column} is {shown(table.text(column, bad))}; it must be a time written as"
            " YYYY-MM-DD HH:MM:SS.fffffff, perhaps with a zone from -23:59 to +23:59",
        )
    seconds = to_int64(pc.cast(whole, pa.timestamp("s"))) - _zone_s(pc.struct_field(parts, "zone"))
    fractions = pc.utf8_rpad(pc.struct_field(parts, "fraction"), 9, padding="0")
    return seconds, to_int64(fractions)


def _first_impossible(whole: Any) -> int | None:
    """Row of the first stamp that has the right shape but is no date or time, like February 30."""
    try:
        pc.cast(whole, pa.timestamp("s"))
    except pa.ArrowInvalid:
        for row, stamp in enumerate(whole):
            try:
                stamp.cast(pa.timestamp("s"))
            except pa.ArrowInvalid:
                return row
    return None


def _zone_s(zones: Any) -> Int64:
    """Offsets from UTC in seconds. A trace has very few different ones."""
    names, codes = np.unique(zones.to_numpy().astype(str), return_inverse=True)
    offsets = [
        0
        if name in ("", "Z")
        else (1 if name[0] == "+" else -1) * (int(name[1:3]) * 3600 + int(name[-2:]) * 60)
        for name in names.tolist()
    ]
    return np.array(offsets, dtype=np.int64)[codes]
