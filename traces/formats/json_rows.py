"""JSONL files as rows: one JSON object on each line."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from .checks import (
    MAX_TOKENS,
    fail_at,
    json_text,
    parsed_json,
    shown,
    time_problem,
    token_problem,
)
from .source import MAX_LINE_BYTES, Source
from .times import UNITS, exact_ns

Row = tuple[int, dict[str, Any]]  # line number, object
# Rows of a chunk: enough for numpy to be fast, few enough for little memory on top.
_CHUNK_ROWS = 1 << 14


def json_rows(
    source: Source,
    required: Sequence[str],
    known: Collection[str] = (),
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Iterator[Row]:
    """Line number and object of each line. Keys that are neither required nor known are counted.

    Raises UserError for a line that is not one JSON object or lacks a required key.
    """
    expected = frozenset(required) | frozenset(known)
    needed = frozenset(required)
    for line, text in source.lines(max_line_bytes):
        row = parsed_json(text)
        if not isinstance(row, dict):
            fail_at(source.place(line), "not one complete JSON object")
        if not row.keys() >= needed:
            missing = next(key for key in required if key not in row)
            seen = ", ".join(map(shown, list(row)[:12]))
            fail_at(source.place(line), f"key {missing} is missing; keys seen: {seen}")
        if not row.keys() <= expected:
            source.unknown_keys.update(row.keys() - expected)
        yield line, row


def in_chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows by the ten thousand, in lists that are never empty."""
    left = iter(rows)
    while chunk := list(islice(left, _CHUNK_ROWS)):
        yield chunk


def token_count(row: dict[str, Any], key: str, place: str, least: int = 1) -> int:
    """A token count of a row. Raises UserError unless it is a whole number from `least` to MAX_TOKENS."""
    value = row[key]
    if type(value) is not int or not least <= value <= MAX_TOKENS:
        fail_at(place, token_problem(key, json_text(value), least))
    return value


def time_ns(row: dict[str, Any], key: str, unit: str, place: str) -> int:
    """A time of a row in nanoseconds. Raises UserError unless it is a number from 0 to the limit."""
    value = row[key]
    unit_name, places = UNITS[unit]
    found = exact_ns(str(value), places) if type(value) in (int, float) else None
    if found is None:
        fail_at(place, time_problem(key, json_text(value), unit_name))
    return found


def block_ids(row: dict[str, Any], length_key: str, block_tokens: int, place: str) -> list[int]:
    """The `hash_ids` of a row, one for each `block_tokens` tokens, the last of which may be partial.

    Raises UserError unless they are that many numbers below 2^64.
    """
    ids = row["hash_ids"]
    if type(ids) is not list or not _are_ids(ids):
        fail_at(place, f"hash_ids is {shown(json_text(ids))}; it must be a list of ids below 2^64")
    num_blocks = -(-row[length_key] // block_tokens)
    if len(ids) != num_blocks:
        fail_at(
            place,
            f"hash_ids has {len(ids)} ids; {length_key} {row[length_key]} needs {num_blocks},"
            f" one for each {block_tokens} tokens",
        )
    return ids


def _are_ids(values: list[Any]) -> bool:
    # type and not isinstance: true and false are ints to Python
    return not values or (
        set(map(type, values)) == {int} and min(values) >= 0 and max(values) < 2**64
    )
