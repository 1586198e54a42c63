"""Mooncake rows with sessions: whole prompts or what is new, stamps or delays."""

import json
from pathlib import Path
from typing import Any

import pytest
from example_counts import fuzz_examples
from format_cases import awaited, broken_json, check_fuzzed, column, hits, jsonl, lengths, write
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.traces import ReadOptions, Trace, UserError, open_trace

MS = 10**6
# As in a test of Dynamo's mooncake-delta replay: the second prompt has 4 + 2 + 2 tokens.
DELTA = [
    {"session_id": "s0", "input_length": 4, "output_length": 2, "hash_ids": [1], "timestamp": 0},
    {"session_id": "s0", "input_length": 2, "output_length": 1, "hash_ids": [2], "delay": 5},
]


def read(
    path: Path, rows: list[dict[str, Any]], format: str, block_tokens: int | None = None
) -> Trace:
    return open_trace(write(path, jsonl(*rows)), format, ReadOptions(block_tokens=block_tokens))


def test_the_user_has_to_say_what_lengths_are(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"fits the formats mooncake-sessions and mooncake-delta;.*delta: .*new in a turn",
    ):
        open_trace(write(tmp_path / "t.jsonl", jsonl(*DELTA)))


def test_a_delta_prompt_has_all_before_it_with_outputs(tmp_path: Path) -> None:
    trace = read(tmp_path / "t.jsonl", DELTA, "mooncake-delta", 4)
    assert lengths(trace) == [(4, 2), (8, 1)]
    assert awaited(trace) == [([], -1), ([0], 5 * MS)]
    # Of the first call's 6 tokens, 5 have their KV computed.
    assert hits(trace) == [0, 5]
    assert column(trace, "arrival_ns") == [0, 5 * MS]
    assert trace.notes == (
        "later calls of a session have no recorded arrival; theirs are as if calls took no time",
    )


def test_a_whole_prompt_is_what_the_row_says(tmp_path: Path) -> None:
    rows = [
        {"session_id": 7, "input_length": 600, "output_length": 2, "hash_ids": [0, 1]},
        {"session_id": 8, "input_length": 512, "output_length": 2, "hash_ids": [0]},
        {"session_id": 7, "input_length": 700, "output_length": 1, "hash_ids": [0, 2]},
    ]
    for row, stamp in zip(rows, (10, 20, 30.5), strict=True):
        row["timestamp"] = stamp
    trace = read(tmp_path / "t.jsonl", rows, "mooncake-sessions")
    assert lengths(trace) == [(600, 2), (512, 2), (700, 1)]
    assert column(trace, "arrival_ns") == [0, 10 * MS, 20_500_000]
    # When the first call ended is not known, nor is the think time after it.
    assert awaited(trace) == [([], -1), ([], -1), ([0], -1)]
    assert hits(trace) == [0, 512, 512]
    assert trace.notes == ()


def test_without_ids_a_delta_session_still_shares_its_history(tmp_path: Path) -> None:
    rows = [
        {"session_id": name, "input_length": 10, "output_length": 5, "priority": 1}
        for name in ("a", "a", "b", "a")
    ]
    trace = read(tmp_path / "t.jsonl", rows, "mooncake-delta")
    assert sorted(lengths(trace)) == [(10, 5), (10, 5), (25, 5), (40, 5)]
    assert sorted(hits(trace)) == [0, 0, 14, 29]
    assert trace.unknown_keys == {"priority": 4}
    assert len(trace.notes) == 3  # no stamps, no delays, hence no arrivals


def test_sessions_are_merged_by_arrival(tmp_path: Path) -> None:
    rows = [
        {"session_id": s, "input_length": n, "output_length": 1, key: time}
        for s, n, key, time in (
            ("a", 1, "timestamp", 0),
            ("a", 2, "delay", 100),
            ("b", 3, "timestamp", 50),
            (None, 4, "timestamp", 20),
        )
    ]
    trace = read(tmp_path / "t.jsonl", rows, "mooncake-sessions")
    assert [prompt for prompt, _ in lengths(trace)] == [1, 4, 3, 2]
    assert awaited(trace) == [([], -1), ([], -1), ([], -1), ([0], 100 * MS)]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"session_id": 2, "timestamp": None}, "first row of a session has no timestamp"),
        ({"timestamp": 5}, "its timestamp is before that of the turn before"),
        ({"session_id": [1]}, "session_id is [1]; it must be a whole number or a text"),
        ({"delay": "5"}, 'delay is "5"'),
        ({"delay": -1}, "delay is -1"),
        ({"input_length": 0}, "input_length is 0"),
        ({"input_length": 10**7 + 1}, "the limit is 10,000,000 tokens"),
        ({"hash_ids": [1]}, "some rows have hash_ids and others none"),
    ],
)
@pytest.mark.parametrize("format", ["mooncake-sessions", "mooncake-delta"])
def test_bad_rows(tmp_path: Path, format: str, row: dict[str, Any], words: str) -> None:
    good = {"session_id": 1, "input_length": 5, "output_length": 1, "timestamp": 9}
    with pytest.raises(UserError) as caught:
        read(tmp_path / "t.jsonl", [good, good | {"timestamp": 10} | row], format)
    assert f"{tmp_path}/t.jsonl line 2: " in str(caught.value)
    assert words in str(caught.value)


def test_a_session_may_not_grow_without_limit(tmp_path: Path) -> None:
    rows = [{"session_id": 1, "input_length": 6 * 10**6, "output_length": 1}] * 2
    with pytest.raises(UserError, match="line 2: its session has 12,000,001 tokens by now"):
        read(tmp_path / "t.jsonl", rows, "mooncake-delta")


def test_blocks_of_another_size_are_refused_with_advice(tmp_path: Path) -> None:
    row = {"timestamp": 0, "input_length": 100, "output_length": 1, "hash_ids": [0, 1]}
    path = write(tmp_path / "t.jsonl", json.dumps(row))
    with pytest.raises(UserError, match="of another size, name it with --trace-block-size"):
        open_trace(path)
    content = open_trace(path, options=ReadOptions(block_tokens=64)).chunks[0].content
    assert content is not None
    assert (content.block_tokens, content.num_tokens.tolist()) == (64, [100])


ROWS = [*DELTA, DELTA[1] | {"timestamp": 3}, DELTA[0] | {"session_id": None}]


@pytest.mark.parametrize("format", ["mooncake-sessions", "mooncake-delta"])
@settings(max_examples=fuzz_examples())
@given(
    data=broken_json(ROWS).map(lambda data: data[1:-1].replace(b"}, {", b"}\n{")),
    block_tokens=st.sampled_from([None, 2]),
)
def test_fuzz(
    tmp_path_factory: pytest.TempPathFactory, format: str, data: bytes, block_tokens: int | None
) -> None:
    path = tmp_path_factory.getbasetemp() / f"{format}.fuzz"
    check_fuzzed(path, data, format, block_tokens=block_tokens)
