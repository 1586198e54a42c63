"""Azure LLM inference traces of 2023 and 2024: `TIMESTAMP,ContextTokens,GeneratedTokens`.

Source: github.com/Azure/AzurePublicDataset. Stamps of 2023 have seven fraction digits (100 ns) and
no zone, those of 2024 six digits, or none at all, and `+00:00`. Every digit is kept. A stamp
without a zone is taken as UTC; zones have hours to 23 and minutes to 59 (RFC 3339, section 5.6).
"""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import Int64
from ..trace import MAX_SPAN_NS, UNKNOWN_MAX_TOKENS, TraceChunk
from .checks import MAX_SPAN_S, Clock, fail_at, shown
from .source import Head, Source
from .table import Table, csv_tables, first_false, to_int64

SHAPE = "CSV with TIMESTAMP, ContextTokens, GeneratedTokens"
_TIME = "TIMESTAMP"
_COLUMNS = (_TIME, "ContextTokens", "GeneratedTokens")
_STAMP = (
    r"^(?P<whole>[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.(?P<fraction>[0-9]{1,9}))?(?P<zone>Z|[+-](?:[01][0-9]|2[0-3]):?[0-5][0-9])?$"
)
# The same with a zone, for a quick look at a whole block.
_ZONED_STAMP = re.sub(r"\?P<\w+>", "?:", _STAMP).replace(")?$", ")$")


def recognises(head: Head) -> bool:
    return head.columns >= set(_COLUMNS)


def read(source: Source) -> Iterator[TraceChunk]:
    clock = Clock(_TIME)
    first_s: int | None = None
    for table in csv_tables(source, _COLUMNS, counts=_COLUMNS[1:]):
        seconds, fractions_ns = _times(table)
        first_s = int(seconds[0]) if first_s is None else first_s
        yield TraceChunk(
            arrival_ns=_arrivals(table, clock, seconds - first_s, fractions_ns),
            num_prompt_tokens=table.token_counts("ContextTokens"),
            num_output_tokens=table.token_counts("GeneratedTokens"),
            max_tokens=np.full(table.num_rows, UNKNOWN_MAX_TOKENS, dtype=np.int64),
        )


def _arrivals(table: Table, clock: Clock, seconds: Int64, fractions_ns: Int64) -> Int64:
    """Arrivals of rows that came whole `seconds` after the first row, and so many ns later."""
    far = np.flatnonzero(np.abs(seconds) >= MAX_SPAN_S)
    if len(far):
        row = int(far[0])
        fail_at(
            table.place(row),
            f"{_TIME} is {shown(table.text(_TIME, row))}, {abs(int(seconds[row])):,} s from the"
            f" first one; the limit is {MAX_SPAN_S:,} s",
        )
    times_ns = seconds * 10**9 + fractions_ns
    assert int(np.abs(times_ns).max()) <= MAX_SPAN_NS, f"{times_ns.max()} ns"
    return clock.arrivals(times_ns, lambda row: table.text(_TIME, row), table.place)


def _times(table: Table) -> tuple[Int64, Int64]:
    """Seconds of UTC since 1970, and nanoseconds on top."""
    texts = table.columns[_TIME]
    zoned = pc.all(pc.match_substring_regex(texts, _ZONED_STAMP)).as_py()
    if zoned:
        try:
            moments_ns = to_int64(pc.cast(texts, pa.timestamp("ns", "UTC")))
        except pa.ArrowInvalid:
            pass  # an impossible date, which is found below
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
            f"{_TIME} is {shown(table.text(_TIME, bad))}; it must be a time written as"
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
