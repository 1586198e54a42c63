"""Qwen-Bailian traces, JSONL: `chat_id`, `parent_chat_id`, `timestamp`, lengths, `turn`, `hash_ids`.

Source: github.com/alibaba-edu/qwen-bailian-usagetraces-anon (Wang et al., ATC 2025). Timestamps are
seconds with fractions. An id stands for 16 prompt tokens and everything before them, the last one
may be partial: ceil(input_length / 16) ids. `input_length` of a later turn contains the history.
`parent_chat_id` is the turn before, -1 for the first; when a turn ended is not recorded.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..sessions import NONE, UNKNOWN_THINK_NS, Sessions
from ..trace import UNKNOWN_MAX_TOKENS, TraceChunk
from .checks import Clock, fail_at, json_text, shown
from .json_columns import block_content, times_ns, token_counts
from .json_rows import Row, in_chunks, json_rows
from .source import Head, Source

SHAPE = "JSONL with chat_id, parent_chat_id, timestamp, input_length, output_length, hash_ids"
_LENGTHS = ("input_length", "output_length")
_KEYS = ("chat_id", "parent_chat_id", "timestamp", *_LENGTHS, "hash_ids")
_UNUSED = ("type", "turn")
_BLOCK_TOKENS = 16
_ROOT = -1


def recognises(head: Head) -> bool:
    return head.has_keys(*_KEYS)


def read(source: Source) -> Iterator[TraceChunk]:
    clock, chats = Clock("timestamp"), _Chats()
    for rows in in_chunks(json_rows(source, _KEYS, _UNUSED)):
        yield _chunk(source, clock, chats, rows)
    if chats.num_orphans:
        source.notes.append(
            f"{chats.num_orphans:,} turns have a parent that is not in the file;"
            " each begins a session here"
        )


def _chunk(source: Source, clock: Clock, chats: "_Chats", rows: list[Row]) -> TraceChunk:
    prompts = token_counts(source, rows, "input_length")
    return TraceChunk(
        arrival_ns=clock.arrivals(
            times_ns(source, rows, "timestamp", "s"),
            lambda i: json_text(rows[i][1]["timestamp"]),
            lambda i: source.place(rows[i][0]),
        ),
        num_prompt_tokens=prompts,
        num_output_tokens=token_counts(source, rows, "output_length"),
        max_tokens=np.full(len(rows), UNKNOWN_MAX_TOKENS, dtype=np.int64),
        content=block_content(source, rows, prompts, _BLOCK_TOKENS),
        sessions=chats.sessions([(row, source.place(line)) for line, row in rows]),
    )


class _Chats:
    """Sessions of a file, chunk by chunk. A session is a first turn and all that descends from it."""

    def __init__(self) -> None:
        self.num_orphans = 0
        self._known: dict[object, tuple[int, int]] = {}  # chat: session, number in it
        self._num_calls: list[int] = []  # of each session

    def sessions(self, rows: list[tuple[dict[str, Any], str]]) -> Sessions:
        session, call, after_call = (np.full(len(rows), NONE) for _ in range(3))
        for i, (row, place) in enumerate(rows):
            chat, parent = (_chat(row, key, place) for key in ("chat_id", "parent_chat_id"))
            if chat in self._known:
                fail_at(place, f"chat_id {shown(json_text(chat))} appears a second time")
            before = self._known.get(parent)
            if before is None:
                self.num_orphans += parent != _ROOT
                session[i] = len(self._num_calls)
                self._num_calls.append(0)
            else:
                session[i], after_call[i] = before
            call[i] = self._num_calls[session[i]]
            self._num_calls[session[i]] += 1
            self._known[chat] = (int(session[i]), int(call[i]))
        unknown = np.full(len(rows), UNKNOWN_THINK_NS)
        return Sessions(session, call, after_call, unknown, np.full(len(rows), NONE))


def _chat(row: dict[str, Any], key: str, place: str) -> object:
    value = row[key]
    if type(value) not in (int, str):
        fail_at(place, f"{key} is {shown(json_text(value))}; it must be a whole number or a text")
    return value
