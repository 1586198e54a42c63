"""Mooncake traces, JSONL: `timestamp`, `input_length`, `output_length`, `hash_ids` in each line.

Source: github.com/kvcache-ai/Mooncake (Qin et al., FAST 2025). Timestamps are whole milliseconds.
An id stands for 512 prompt tokens and everything before them; the last one may be partial, so a
row has ceil(input_length / 512) ids. That also tells the format from look-alikes with other blocks.
"""

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from ..trace import UNKNOWN_MAX_TOKENS, Trace, TraceChunk
from .checks import MAX_SPAN_S, Clock, time_problem
from .json_columns import block_content, token_counts, whole_numbers
from .json_rows import Row, in_chunks, json_rows
from .mooncake_sessions import BLOCK_TOKENS
from .mooncake_writer import write_mooncake
from .source import Head, Source

SHAPE = "JSONL with timestamp, input_length, output_length, hash_ids"
CARRIES = frozenset[str]()
CONTENT_TOKENS = BLOCK_TOKENS
_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
_HINT = "; if the file has blocks of another size, name it with --trace-block-size"
_MAX_MS = MAX_SPAN_S * 1000
_UNIT = "whole milliseconds"


def recognises(head: Head) -> bool:
    return head.has_keys(*_KEYS) and not (head.has_keys("chat_id") or head.has_keys("session_id"))


def read(source: Source) -> Iterator[TraceChunk]:
    clock = Clock("timestamp")
    for rows in in_chunks(json_rows(source, _KEYS)):
        yield _chunk(source, clock, rows)


def write(trace: Trace, file: BinaryIO) -> None:
    write_mooncake(trace, file, CONTENT_TOKENS)


def _chunk(source: Source, clock: Clock, rows: list[Row]) -> TraceChunk:
    times_ms = whole_numbers(
        source, rows, "timestamp", _MAX_MS, lambda text: time_problem("timestamp", text, _UNIT)
    )
    prompts = token_counts(source, rows, "input_length")
    return TraceChunk(
        arrival_ns=clock.arrivals(
            times_ms * 10**6,
            lambda i: str(times_ms[i]),
            lambda i: source.place(rows[i][0]),
        ),
        num_prompt_tokens=prompts,
        num_output_tokens=token_counts(source, rows, "output_length"),
        max_tokens=np.full(len(rows), UNKNOWN_MAX_TOKENS, dtype=np.int64),
        content=block_content(
            source, rows, prompts, source.options.block_tokens or BLOCK_TOKENS, _HINT
        ),
    )
