"""Vidur replay traces: `arrived_at,num_prefill_tokens,num_decode_tokens`, times in seconds.

Source: github.com/microsoft/vidur. Its older name for the columns is
`Time,PromptTokenCount,GeneratedTokenCount`. Seconds are decimal text and are turned into
nanoseconds without a detour through floats: one rounding, half up, at the tenth decimal place.
"""

from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import Int64
from ..trace import MAX_SPAN_NS, UNKNOWN_MAX_TOKENS, Trace, TraceChunk
from .checks import Clock, fail_at, time_problem
from .source import Head, Source
from .table import Table, csv_tables, to_int64, write_rows

SHAPE = "CSV with arrived_at, num_prefill_tokens, num_decode_tokens"
CARRIES: frozenset[str] = frozenset()
_COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
_OLD_COLUMNS = ("Time", "PromptTokenCount", "GeneratedTokenCount")


def recognises(head: Head) -> bool:
    return head.columns >= set(_COLUMNS) or head.columns >= set(_OLD_COLUMNS)


def read(source: Source) -> Iterator[TraceChunk]:
    columns = _OLD_COLUMNS if source.head.columns >= set(_OLD_COLUMNS) else _COLUMNS
    time, prompt, output = columns
    clock = Clock(time)
    for table in csv_tables(source, columns, counts=columns[1:]):
        yield TraceChunk(
            arrival_ns=_arrivals(table, time, clock),
            num_prompt_tokens=table.token_counts(prompt),
            num_output_tokens=table.token_counts(output),
            max_tokens=np.full(table.num_rows, UNKNOWN_MAX_TOKENS, dtype=np.int64),
        )


def write(trace: Trace, file: BinaryIO) -> None:
    """Seconds get nine decimal places, so that every nanosecond is kept."""
    file.write((",".join(_COLUMNS) + "\n").encode())
    for chunk in trace.chunks:
        whole, fraction = np.divmod(chunk.arrival_ns, 10**9)
        fraction_text = pc.utf8_lpad(pc.cast(pa.array(fraction), pa.string()), 9, padding="0")
        arrived_at = pc.binary_join_element_wise(
            pc.cast(pa.array(whole), pa.string()), fraction_text, "."
        )
        write_rows([arrived_at, chunk.num_prompt_tokens, chunk.num_output_tokens], file)


def _arrivals(table: Table, column: str, clock: Clock) -> Int64:
    texts = table.columns[column]
    parts = pc.extract_regex(texts, r"^(?P<whole>[0-9]{1,9})(?:\.(?P<fraction>[0-9]*))?$")
    plain = pc.is_valid(parts)
    whole = to_int64(pc.fill_null(pc.struct_field(parts, "whole"), "0"))
    fraction = pc.fill_null(pc.struct_field(parts, "fraction"), "")
    # Ten digits: nine are nanoseconds, the tenth decides the rounding.
    padded = pc.utf8_slice_codeunits(pc.utf8_rpad(fraction, 10, padding="0"), 0, 10)
    times_ns = whole * 10**9 + (to_int64(padded) + 5) // 10
    # Few or no rows: exponents such as 1e-05, signs, and what is not a time at all.
    for row in np.flatnonzero(~plain.to_numpy()).tolist():
        text = table.text(column, row)
        value = _exact_ns(text)
        if value is None:
            fail_at(table.place(row), time_problem(column, text, "seconds"))
        times_ns[row] = value
    return clock.arrivals(times_ns, lambda row: table.text(column, row), table.place)


def _exact_ns(seconds: str) -> int | None:
    """Nanoseconds, or None if the text is no number from 0 to the limit."""
    if not seconds.isascii() or "_" in seconds:  # numbers to Decimal, but not to the other columns
        return None
    try:
        value = Decimal(seconds)
    except InvalidOperation:
        return None
    # The order matters: comparing a NaN raises, scaling 1e999999 takes all memory.
    if not value.is_finite() or not 0 <= value <= MAX_SPAN_NS // 10**9:
        return None
    if value.adjusted() < -11:
        return 0
    return int((value * 10**9).quantize(Decimal(1), rounding=ROUND_HALF_UP))
