"""JSONL files as rows: one JSON object on each line."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from .checks import fail_at, parsed_json, shown
from .source import MAX_LINE_BYTES, Source

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
