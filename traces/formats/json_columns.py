"""Rows of JSONL files as columns, checked all at once; only what is wrong is looked for row by row."""

from collections.abc import Callable
from itertools import chain

import numpy as np

from ..arrays import Int64
from ..content import Content, content_of_block_ids
from .checks import MAX_TOKENS, fail_at, json_text, shown, time_problem, token_problem
from .json_rows import Row
from .source import Source
from .times import UNITS, exact_ns


def whole_numbers(
    source: Source,
    rows: list[Row],
    key: str,
    most: int,
    problem: Callable[[str], str],
    least: int = 0,
) -> Int64:
    """A column of whole numbers from `least` to `most`; `problem` says what is wrong with another."""
    values = [row[key] for _, row in rows]
    # type and not isinstance: true and false are ints to Python
    if set(map(type, values)) != {int} or min(values) < least or max(values) > most:
        line, value = next(
            (line, row[key])
            for line, row in rows
            if type(row[key]) is not int or not least <= row[key] <= most
        )
        fail_at(source.place(line), problem(json_text(value)))
    return np.array(values, dtype=np.int64)


def token_counts(source: Source, rows: list[Row], key: str, least: int = 1) -> Int64:
    """A column of token counts from `least` to MAX_TOKENS."""
    return whole_numbers(
        source, rows, key, MAX_TOKENS, lambda text: token_problem(key, text, least), least
    )


def times_ns(source: Source, rows: list[Row], key: str, unit: str) -> Int64:
    """A column of times from 0, numbers in `unit`, in nanoseconds."""
    unit_name, places = UNITS[unit]
    found = []
    for line, row in rows:
        value = row[key]
        time_ns = exact_ns(str(value), places) if type(value) in (int, float) else None
        if time_ns is None:
            fail_at(source.place(line), time_problem(key, json_text(value), unit_name))
        found.append(time_ns)
    return np.array(found, dtype=np.int64)


def block_content(
    source: Source, rows: list[Row], num_prompt_tokens: Int64, block_tokens: int, hint: str = ""
) -> Content:
    """What `hash_ids` say: one id below 2^64 for each `block_tokens` tokens, the last one perhaps partial.

    `hint` is what else a message may advise where the number of ids is wrong.
    """
    lists = [row["hash_ids"] for _, row in rows]
    for (line, _), ids in zip(rows, lists, strict=True):
        if type(ids) is not list:
            _fail_ids(source.place(line), ids)
    ids = list(chain.from_iterable(lists))
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= 2**64):
        for (line, _), of_row in zip(rows, lists, strict=True):
            if not all(type(i) is int and 0 <= i < 2**64 for i in of_row):
                _fail_ids(source.place(line), of_row)
    num_ids = np.fromiter(map(len, lists), dtype=np.int64)
    num_blocks = -(-num_prompt_tokens // block_tokens)
    wrong = np.flatnonzero(num_ids != num_blocks)
    if len(wrong):
        row = int(wrong[0])
        fail_at(
            source.place(rows[row][0]),
            f"hash_ids has {num_ids[row]} ids; input_length {num_prompt_tokens[row]} needs"
            f" {num_blocks[row]}, one for each {block_tokens} tokens{hint}",
        )
    offsets = np.concatenate(([0], np.cumsum(num_ids)))
    return content_of_block_ids(
        block_tokens, np.array(ids, dtype=np.uint64), offsets, num_prompt_tokens
    )


def _fail_ids(place: str, ids: object) -> None:
    fail_at(place, f"hash_ids is {shown(json_text(ids))}; it must be a list of ids below 2^64")
