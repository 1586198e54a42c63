"""Vidur traces: `arrived_at,num_prefill_tokens,num_decode_tokens`, times in seconds; or lengths only.

Source: github.com/microsoft/vidur. Its older names for the columns are
`Time,PromptTokenCount,GeneratedTokenCount`. Files without the times hold lengths, from which Vidur draws
or takes row by row; read here, all requests arrive at once.
"""

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..trace import UNKNOWN_MAX_TOKENS, Trace, TraceChunk
from .source import Head, Source
from .table import csv_tables, write_rows
from .times import NumberClock

SHAPE = "CSV with num_prefill_tokens, num_decode_tokens, usually arrived_at"
CARRIES = frozenset({"nanoseconds"})
CONTENT_TOKENS = None
_COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
_OLD_COLUMNS = ("Time", "PromptTokenCount", "GeneratedTokenCount")
_DERIVED = ("num_total_tokens", "pd_ratio")  # follow from the others


def recognises(head: Head) -> bool:
    return any(head.columns >= {prompt, output} for _, prompt, output in (_COLUMNS, _OLD_COLUMNS))


def read(source: Source) -> Iterator[TraceChunk]:
    names = _OLD_COLUMNS if source.head.columns >= set(_OLD_COLUMNS[1:]) else _COLUMNS
    time, prompt, output = names
    clock = NumberClock(time) if time in source.head.columns else None
    if clock is None:
        source.notes.append("the file has lengths only, no arrivals: all requests arrive at once")
    for table in csv_tables(source, names if clock else names[1:], (), _DERIVED, counts=names[1:]):
        yield TraceChunk(
            arrival_ns=(
                clock.arrivals(table) if clock else np.zeros(table.num_rows, dtype=np.int64)
            ),
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
