"""Mooncake rows with a `session_id`: turns in order, `timestamp` or `delay` in milliseconds.

Tools that took the format further (AIPerf, Dynamo) let the rows of a session follow one another: the
first has a `timestamp`, later ones may have a `delay` after the turn before has ended. They do not
agree on what `input_length` of a later row is, and a file does not say: here, the whole prompt, as
in Dynamo's `mooncake`; in `mooncake-delta`, what is new. Other keys (texts, tools) are not read.
"""

from collections.abc import Iterator
from typing import Any

from ..arrays import Int64
from ..content import Content
from ..trace import TraceChunk
from .calls import LATER_CALLS, Call, chunk_of_calls
from .checks import fail_at, json_text, shown
from .json_columns import block_content, times_ns, token_counts
from .json_rows import Row, json_rows
from .source import Head, Source

SHAPE = "JSONL with session_id, input_length, output_length; input_length is the whole prompt"
LENGTHS = ("input_length", "output_length")
OPTIONAL = ("session_id", "timestamp", "delay", "hash_ids")
BLOCK_TOKENS = 512
_UNTIMED = "no row has a timestamp: all sessions start at once"
_UNDELAYED = "later turns without a delay come as soon as the turn before has ended"


def recognises(head: Head) -> bool:
    return head.has_keys("session_id", *LENGTHS)


def read(source: Source) -> Iterator[TraceChunk]:
    rows = list(json_rows(source, LENGTHS, OPTIONAL))
    if rows:
        prompts = token_counts(source, rows, "input_length")
        calls = session_calls(source, rows, prompts.tolist())
        yield from chunk_of_calls(source.path, calls, ids_of_rows(source, rows, prompts))


def ids_of_rows(source: Source, rows: list[Row], num_tokens: Int64) -> Content | None:
    """What `hash_ids` say of that many tokens of each row; None if no row has them."""
    first, *others = ("hash_ids" in row for _, row in rows)
    if not all(has_ids == first for has_ids in others):
        line = rows[1 + others.index(not first)][0]
        fail_at(source.place(line), "some rows have hash_ids and others none")
    if not first:
        return None
    return block_content(source, rows, num_tokens, source.options.block_tokens or BLOCK_TOKENS)


def session_calls(source: Source, rows: list[Row], num_prompt_tokens: list[int]) -> list[Call]:
    """The calls of all rows, each after the one before it in its session."""
    outputs = token_counts(source, rows, "output_length").tolist()
    untimed = not any(row.get("timestamp") is not None for _, row in rows)
    numbers: dict[object, int] = {}
    last: dict[int, int] = {}  # session: its last call so far
    calls: list[Call] = []
    notes: set[str] = {_UNTIMED} if untimed else set()
    for index, (line, row) in enumerate(rows):
        session = _session(row, source.place(line), numbers)
        before = last.get(session)
        stamp, delay = (_milliseconds(source, line, row, key) for key in ("timestamp", "delay"))
        after: tuple[int, ...] = ()
        if before is None:
            if stamp is None and not untimed:
                fail_at(source.place(line), "the first row of a session has no timestamp")
            arrival = stamp or 0
        else:
            after = (before,)
            if stamp is None and delay is None:
                notes.add(_UNDELAYED)
                delay = 0
            if stamp is None:
                notes.add(LATER_CALLS)
            arrival = calls[before].arrival_ns + (delay or 0) if stamp is None else stamp
            if arrival < calls[before].arrival_ns:
                fail_at(source.place(line), "its timestamp is before that of the turn before")
        call = Call(session, arrival, num_prompt_tokens[index], outputs[index], after)
        if after and delay is not None:
            call.think_ns = delay
        calls.append(call)
        last[session] = index
    source.notes.extend(sorted(notes))
    return calls


def _session(row: dict[str, Any], place: str, numbers: dict[object, int]) -> int:
    name = row.get("session_id")
    if name is None:  # a request on its own
        name = object()
    elif type(name) not in (int, str):
        fail_at(
            place,
            f"session_id is {shown(json_text(name))}; it must be a whole number or a text",
        )
    return numbers.setdefault(name, len(numbers))


def _milliseconds(source: Source, line: int, row: dict[str, Any], key: str) -> int | None:
    if row.get(key) is None:
        return None
    return int(times_ns(source, [(line, row)], key, "ms")[0])
