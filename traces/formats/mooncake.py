"""Mooncake traces, JSONL: `timestamp`, `input_length`, `output_length`, `hash_ids` in each line.

Source: github.com/kvcache-ai/Mooncake (Qin et al., FAST 2025). Timestamps are whole milliseconds.
An id stands for 512 prompt tokens and everything before them; the last one may be partial, so a
row has ceil(input_length / 512) ids. That also tells the format from look-alikes with other blocks.
"""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..trace import UNKNOWN_MAX_TOKENS, ContentIds, Trace, TraceChunk
from .checks import MAX_SPAN_S, MAX_TOKENS, fail_at, rebase, shown, time_problem, token_problem
from .table import BOM

SHAPE = "JSONL with timestamp, input_length, output_length, hash_ids"
_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
_BLOCK_TOKENS = 512
_MAX_MS = MAX_SPAN_S * 1000


def recognises(first_line: bytes) -> bool:
    """Also a broken line that starts like an object: `read` says better what is wrong with it."""
    if not first_line.lstrip().startswith(b"{"):
        return False
    row = _parsed(first_line)
    return not isinstance(row, dict) or set(_KEYS) <= set(row)


def read(path: Path) -> Trace:
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    num_blank = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(BOM) if number == 1 else line
            if not text.strip():
                num_blank += 1
                continue
            rows.append(_checked(text, f"{path} line {number}"))
            lines.append(number)
    if not rows:
        raise UserError(f"{path}: the trace is empty, there are no rows")
    times_ms = np.array([row["timestamp"] for row in rows], dtype=np.int64)
    ids = [row["hash_ids"] for row in rows]
    chunk = TraceChunk(
        arrival_ns=rebase(
            times_ms * 10**6,
            "timestamp",
            lambda row: str(times_ms[row]),
            lambda row: f"{path} line {lines[row]}",
        ),
        num_prompt_tokens=np.array([row["input_length"] for row in rows], dtype=np.int64),
        num_output_tokens=np.array([row["output_length"] for row in rows], dtype=np.int64),
        max_tokens=np.full(len(rows), UNKNOWN_MAX_TOKENS, dtype=np.int64),
        content=ContentIds(
            block_tokens=_BLOCK_TOKENS,
            offsets=np.cumsum([0, *map(len, ids)], dtype=np.int64),
            ids=np.fromiter(chain.from_iterable(ids), dtype=np.uint64),
        ),
    )
    skipped = {"blank line": num_blank} if num_blank else {}
    return Trace(path.stem, "mooncake", (chunk,), skipped=skipped)


def _parsed(line: bytes) -> Any:
    """The JSON value of a line, or None: the formats here have no use for a null."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):  # ValueError: bad JSON, bad UTF-8, absurdly long numbers
        return None


def _checked(line: bytes, place: str) -> dict[str, Any]:
    row = _parsed(line)
    if not isinstance(row, dict):
        fail_at(place, "not one complete JSON object")
    for key in _KEYS:
        if key not in row:
            fail_at(place, f"key {key} is missing; keys seen: {', '.join(map(shown, row))}")
    time, ids = row["timestamp"], row["hash_ids"]
    if type(time) is not int or not 0 <= time <= _MAX_MS:
        fail_at(place, time_problem("timestamp", _json(time), "whole milliseconds"))
    for key in ("input_length", "output_length"):
        if type(row[key]) is not int or not 1 <= row[key] <= MAX_TOKENS:
            fail_at(place, token_problem(key, _json(row[key])))
    if type(ids) is not list or not all(type(i) is int and 0 <= i < 2**64 for i in ids):
        fail_at(place, f"hash_ids is {shown(_json(ids))}; it must be a list of ids below 2^64")
    num_blocks = -(-row["input_length"] // _BLOCK_TOKENS)
    if len(ids) != num_blocks:
        fail_at(
            place,
            f"hash_ids has {len(ids)} ids; input_length {row['input_length']} needs {num_blocks},"
            f" one for each {_BLOCK_TOKENS} tokens",
        )
    return row


def _json(value: object) -> str:
    # An int may have more digits than Python agrees to print; its size is enough then.
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    return json.dumps(value)
