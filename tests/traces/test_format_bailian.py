"""Qwen-Bailian: seconds, blocks of 16, chats that branch."""

import json
from pathlib import Path
from typing import Any

import pytest
from example_counts import fuzz_examples
from format_cases import (
    awaited,
    broken_bytes,
    broken_json,
    check_fuzzed,
    column,
    failure,
    hits,
    jsonl,
    lengths,
    read,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.traces import describe, open_trace, prefix_hits


def turn(chat: int | str, parent: int | str, ids: list[int], **changes: Any) -> dict[str, Any]:
    row = {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": 0.0,
        "input_length": 16 * len(ids) - 3,
        "output_length": 5,
        "type": "text",
        "turn": 1,
        "hash_ids": ids,
    }
    return row | changes


def test_a_chat_that_branches(tmp_path: Path) -> None:
    trace = read(
        tmp_path / "q.jsonl",
        jsonl(
            turn(10, -1, [0, 1]),
            turn(11, 10, [0, 2, 3], timestamp=1.5),
            turn(12, -1, [4], timestamp=1.75),
            turn(13, 10, [0, 2, 4], timestamp=2.000000001),
            turn(14, 77, [0, 2, 3], timestamp=3, extra=1),
        ),
    )
    assert trace.format == "bailian"
    assert column(trace, "arrival_ns") == [
        0,
        1_500_000_000,
        1_750_000_000,
        2_000_000_001,
        3 * 10**9,
    ]
    assert lengths(trace)[1] == (45, 5)
    assert awaited(trace) == [([], -1), ([0], -1), ([], -1), ([0], -1), ([], -1)]
    assert trace.unknown_keys == {"extra": 1}
    assert trace.notes == (
        "1 turns have a parent that is not in the file; each begins a session here",
    )
    summary = describe(trace)
    assert summary.sessions is not None
    assert (summary.sessions.num_sessions, summary.sessions.num_forks) == (3, 1)
    # Ids 0 and 2 of the last turn are full blocks, its id 3 a partial one: 16, 16 and 13 tokens.
    assert hits(trace) == [0, 16, 0, 32, 45]
    (own,) = prefix_hits(trace)
    assert (own.num_hit_blocks, own.num_blocks) == (1 + 2 + 3, 2 + 3 + 1 + 3 + 3)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (turn(1, -1, [1, 2], input_length=33), "2 ids; input_length 33 needs 3, one for each 16"),
        (turn(1, -1, [1, 2], input_length=16), "2 ids; input_length 16 needs 1"),
        (turn(1, -1, [True]), "hash_ids is [true]"),
        (turn(1, -1, [1], timestamp="0"), 'timestamp is "0"'),
        (turn(1, -1, [1], timestamp=float("inf")), "timestamp is Infinity"),
        (turn(1, -1, [1], timestamp=-0.5), "timestamp is -0.5"),
        (turn(1, -1, [1], output_length=0), "output_length is 0"),
        (turn(1, -1, [1], input_length=True), "input_length is true"),
        (turn(0, -1, [1]), "chat_id 0 appears a second time"),
        (turn([1], -1, [1]), "chat_id is [1]; it must be a whole number or a text"),  # type: ignore[arg-type]
        ({"chat_id": 1}, "key parent_chat_id is missing"),
    ],
)
def test_bad_rows(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    message = failure(tmp_path / "q.jsonl", jsonl(turn(0, -1, [0])) + "\n" + json.dumps(row))
    assert " line 3: " in message
    assert words in message


def test_public_row(shared_dir: Path) -> None:
    trace = open_trace(shared_dir / "traces/bailian/qwen_thinking_blksz_16.docrow.jsonl")
    content = trace.chunks[0].content
    assert content is not None
    assert (lengths(trace), content.block_tokens) == ([(502, 1494)], 16)
    # ceil(502 / 16) = 32 dense ids are one piece.
    assert content.num_tokens.tolist() == [502]


ROWS = [turn(0, -1, [0, 1]), turn("a", 0, [0, 1, 2]), turn(2, -1, [7])]


@settings(max_examples=fuzz_examples())
@given(
    data=st.one_of(
        broken_bytes(jsonl(*ROWS).encode()),
        broken_json(ROWS).map(lambda data: data[1:-1].replace(b"}, {", b"}\n{")),
    ),
    named=st.booleans(),
)
def test_fuzz(tmp_path_factory: pytest.TempPathFactory, data: bytes, named: bool) -> None:
    path = tmp_path_factory.getbasetemp() / "bailian.fuzz"
    check_fuzzed(path, data, "bailian" if named else None)
