"""Our own CSV: `arrival_ns,num_prompt_tokens,num_output_tokens` and, optionally, `max_tokens`.

Times are whole nanoseconds. An empty `max_tokens` means that the trace does not say.
"""

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import Int64
from ..trace import MAX_SPAN_NS, UNKNOWN_MAX_TOKENS, Trace, TraceChunk
from .checks import Clock, fail_at, time_problem
from .source import Head, Source
from .table import Table, csv_tables, first_false, to_int64, write_rows

SHAPE = "CSV with arrival_ns, num_prompt_tokens, num_output_tokens"
CARRIES = frozenset({"nanoseconds", "max_tokens"})
CONTENT_TOKENS = None
_TIME = "arrival_ns"
_COLUMNS = (_TIME, "num_prompt_tokens", "num_output_tokens")
_MAX_TOKENS = "max_tokens"


def recognises(head: Head) -> bool:
    return head.columns >= set(_COLUMNS)


def read(source: Source) -> Iterator[TraceChunk]:
    clock = Clock(_TIME)
    for table in csv_tables(source, _COLUMNS, (_MAX_TOKENS,), counts=_COLUMNS[1:]):
        yield TraceChunk(
            arrival_ns=_arrivals(table, clock),
            num_prompt_tokens=table.token_counts("num_prompt_tokens"),
            num_output_tokens=table.token_counts("num_output_tokens"),
            max_tokens=(
                table.token_counts(_MAX_TOKENS, unknown=UNKNOWN_MAX_TOKENS)
                if _MAX_TOKENS in table.columns
                else np.full(table.num_rows, UNKNOWN_MAX_TOKENS, dtype=np.int64)
            ),
        )


def write(trace: Trace, file: BinaryIO) -> None:
    file.write((",".join((*_COLUMNS, _MAX_TOKENS)) + "\n").encode())
    for chunk in trace.chunks:
        max_tokens = pa.array(chunk.max_tokens, mask=chunk.max_tokens == UNKNOWN_MAX_TOKENS)
        write_rows(
            [chunk.arrival_ns, chunk.num_prompt_tokens, chunk.num_output_tokens, max_tokens], file
        )


def _arrivals(table: Table, clock: Clock) -> Int64:
    texts = table.columns[_TIME]
    bad = first_false(pc.match_substring_regex(texts, r"^[0-9]{1,18}$"))
    if bad is not None:
        fail_at(table.place(bad), time_problem(_TIME, table.text(_TIME, bad), "whole nanoseconds"))
    times_ns = to_int64(texts)
    assert int(times_ns.max()) <= MAX_SPAN_NS, f"{times_ns.max()} ns from 18 digits"
    return clock.arrivals(times_ns, lambda row: table.text(_TIME, row), table.place)
