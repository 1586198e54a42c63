"""Mooncake traces, JSONL: `timestamp`, `input_length`, `output_length`, `hash_ids` in each line.

Source: github.com/kvcache-ai/Mooncake (Qin et al., FAST 2025). Timestamps are whole milliseconds.
An id stands for 512 prompt tokens and everything before them; the last one may be partial, so a
row has ceil(input_length / 512) ids. That also tells the format from look-alikes with other blocks.
"""

from collections.abc import Iterator
from itertools import chain

import numpy as np

from ..content import content_of_block_ids
from ..trace import UNKNOWN_MAX_TOKENS, TraceChunk
from .checks import MAX_SPAN_S, Clock, fail_at, json_text, time_problem
from .json_rows import Row, block_ids, in_chunks, json_rows, token_count
from .source import Head, Source

SHAPE = "JSONL with timestamp, input_length, output_length, hash_ids"
_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
_BLOCK_TOKENS = 512
_MAX_MS = MAX_SPAN_S * 1000


def recognises(head: Head) -> bool:
    return head.has_keys(*_KEYS) and not head.has_keys("chat_id")


def read(source: Source) -> Iterator[TraceChunk]:
    clock = Clock("timestamp")
    for rows in in_chunks(json_rows(source, _KEYS)):
        yield _chunk(source, clock, rows)


def _chunk(source: Source, clock: Clock, rows: list[Row]) -> TraceChunk:
    times_ms, prompts, outputs, ids = [], [], [], []
    for line, row in rows:
        place = source.place(line)
        time = row["timestamp"]
        if type(time) is not int or not 0 <= time <= _MAX_MS:
            fail_at(place, time_problem("timestamp", json_text(time), "whole milliseconds"))
        times_ms.append(time)
        prompts.append(token_count(row, "input_length", place))
        outputs.append(token_count(row, "output_length", place))
        ids.append(block_ids(row, "input_length", _BLOCK_TOKENS, place))
    return TraceChunk(
        arrival_ns=clock.arrivals(
            np.array(times_ms) * 10**6,
            lambda i: str(times_ms[i]),
            lambda i: source.place(rows[i][0]),
        ),
        num_prompt_tokens=np.array(prompts),
        num_output_tokens=np.array(outputs),
        max_tokens=np.full(len(rows), UNKNOWN_MAX_TOKENS, dtype=np.int64),
        content=content_of_block_ids(
            _BLOCK_TOKENS,
            np.fromiter(chain.from_iterable(ids), dtype=np.uint64),
            np.cumsum([0, *map(len, ids)], dtype=np.int64),
            np.array(prompts),
        ),
    )
