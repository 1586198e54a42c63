"""TraceLab rounds and replay files: times in events, new tokens on top of a kept prefix."""

import json
from pathlib import Path
from typing import Any

import pytest
from example_counts import fuzz_examples
from format_cases import (
    S,
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

from kvtwin.traces import open_trace

Json = dict[str, Any]
MS = 10**6


def event(kind: str, second: float) -> Json:
    return {"event_type": kind, "timestamp": f"2026-06-01T05:40:{second:06.3f}Z"}


def round_(index: Any, prefix: Any, new: Any, output: Any, *events: Json, **more: Any) -> Json:
    row = {"session_id": "a", "round_index": index, "prefix_tokens": prefix, "model": "m"}
    row |= {"input_tokens_total": prefix + new, "newly_append_tokens": new}
    return row | {"output_tokens": output, "timing_events": list(events)} | more


FIRST = round_(0, 50, 50, 9, event("user_message", 1), event("reasoning", 3), event("text", 4))
# Two results of parallel tools; the call is made after the later one.
SECOND = round_(
    1,
    100,
    40,
    8,
    event("tool_result", 5),
    event("tool_result", 8.5),
    event("tool_call", 10),
    event("usage_report", 9),
)
ROUNDS = [FIRST, SECOND]


def test_times_come_from_events(tmp_path: Path) -> None:
    third = round_(2, 100, 1, 1, event("user_message", 12), event("text", 13))
    trace = read(tmp_path / "rounds.jsonl", jsonl(third, *reversed(ROUNDS)))
    assert trace.format == "tracelab"
    assert column(trace, "arrival_ns") == [0, 7.5 * S, 11 * S]
    assert lengths(trace) == [(100, 9), (140, 8), (101, 1)]
    # From the ends at 4 and, though it is not the last event, at 10.
    assert awaited(trace) == [([], -1), ([0], 4.5 * S), ([1], 2 * S)]
    assert hits(trace) == [0, 100, 100]
    assert trace.unknown_keys == {}


def test_a_round_without_input_events_begins_with_its_first(tmp_path: Path) -> None:
    third = round_(2, 0, 150, 3, event("text", 20), event("user_message", 25))
    trace = read(tmp_path / "rounds.jsonl", jsonl(*ROUNDS, third))
    assert column(trace, "arrival_ns")[2] == 19 * S


def test_a_provider_miss_is_no_new_prompt(tmp_path: Path) -> None:
    """After a tool the prompt goes on; after a user, or when it shrinks, only the prefix is known."""
    rows = [
        round_(0, 0, 100, 9, event("user_message", 1), event("text", 2)),
        round_(1, 30, 100, 9, event("tool_result", 3), event("text", 4)),  # goes on: 100 of 130
        round_(2, 60, 90, 9, event("user_message", 5), event("text", 6)),  # 60 of 150
        round_(3, 70, 10, 9, event("tool_result", 7), event("text", 8)),  # shrinks: 70 of 80
        round_(4, 85, 5, 9, event("tool_result", 9), event("text", 10)),  # 85 is in the output
        round_(5, 500, 0, 9, event("user_message", 11), event("text", 12)),  # only 99 were there
    ]
    trace = read(tmp_path / "rounds.jsonl", jsonl(*rows))
    assert hits(trace) == [0, 100, 60, 70, 85, 98]  # of 99: the last output token has no KV
    assert any("had 745 prompt tokens" in note for note in trace.notes)


def test_sessions_are_apart(tmp_path: Path) -> None:
    other = [row | {"session_id": 7} for row in ROUNDS]
    trace = read(tmp_path / "rounds.jsonl", jsonl(ROUNDS[0], *other, ROUNDS[1]))
    assert hits(trace) == [0, 0, 100, 100]
    assert [rows for rows, _ in awaited(trace)] == [[], [], [0], [1]]


def test_rounds_without_output_or_times_are_counted(tmp_path: Path) -> None:
    rows = [
        FIRST,
        round_(1, 0, 9, 0, event("text", 5)),
        round_(2, 0, 9, 4),
        SECOND | {"round_index": 3},
    ]
    trace = read(tmp_path / "rounds.jsonl", jsonl(*rows))
    assert trace.num_requests == 2
    assert trace.skipped == {"round without output tokens": 1, "round without timing events": 1}


BROKEN: list[tuple[str, Json, tuple[str, ...]]] = [
    ("sum", SECOND | {"input_tokens_total": 9}, ("input_tokens_total is 9, not prefix + new", "100 + 40")),
    ("zero", SECOND | {"input_tokens_total": 0}, ("input_tokens_total is 0",)),
    ("negative", SECOND | {"prefix_tokens": -1}, ("prefix_tokens is -1", "at least 0")),
    ("null", SECOND | {"newly_append_tokens": None}, ("newly_append_tokens is null",)),
    ("output", SECOND | {"output_tokens": "9"}, ('output_tokens is "9"',)),
    ("same", FIRST, ("round_index is 0 as at", "line 1")),
    ("index", SECOND | {"round_index": -1}, ("round_index is -1",)),
    ("session", SECOND | {"session_id": None}, ("session_id is null; it must be text",)),
    ("events", SECOND | {"timing_events": {}}, ("timing_events is {}; it must be a list",)),
    ("event", SECOND | {"timing_events": [{}]}, ("key event_type of timing_events[0] is missing",)),
    ("date", SECOND | {"timing_events": [event("text", 1) | {"timestamp": 5}]}, (
        "timing_events[0].timestamp is 5", "text")),
    ("month", SECOND | {"timing_events": [event("text", 1) | {"timestamp": "2026-13-01T00:00:00Z"}]}, (
        'timestamp is "2026-13-01T00:00:00Z"', "a date like")),
    ("seconds", SECOND | {"timing_events": [event("text", 61)]}, ("05:40:61.000Z",)),
    ("missing", {k: v for k, v in SECOND.items() if k != "prefix_tokens"}, (
        "key prefix_tokens is missing",)),
]  # fmt: skip


@pytest.mark.parametrize(("row", "words"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_broken_rounds(tmp_path: Path, row: Json, words: tuple[str, ...]) -> None:
    message = failure(tmp_path / "r.jsonl", jsonl(FIRST, row))
    assert "r.jsonl line 2: " in message
    for word in words:
        assert word in message


REPLAY = """session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms
x,200,1,120,30,10,0.5
x,200,0,0,100,20,12.25
y,150.5,0,0,40,5,9
x,200,2,0,1,1,0
"""


def test_replay_rounds(tmp_path: Path) -> None:
    trace = read(tmp_path / "replay.csv", REPLAY)
    assert trace.format == "tracelab-replay"
    assert column(trace, "arrival_ns") == [0, 49.5 * MS, 61.75 * MS, 62.25 * MS]
    assert lengths(trace) == [(40, 5), (100, 20), (150, 10), (1, 1)]
    assert awaited(trace) == [([], -1), ([], -1), ([1], 12.25 * MS), ([2], 0.5 * MS)]
    assert hits(trace) == [0, 0, 119, 0]  # of 100 + 20: the last output token has no KV
    assert any("no recorded arrival" in note for note in trace.notes)


def test_replay_without_times_or_sessions(tmp_path: Path) -> None:
    """A compacted context keeps a head; a prefix that nobody saw is new."""
    text = "round_idx,prefix_len,input_len,output_len,note\n0,70,30,9,a\n1,40,5,9,b\n2,54,0,9,c\n"
    trace = read(tmp_path / "replay.csv", text)
    assert column(trace, "arrival_ns") == [0, 0, 0]
    assert lengths(trace) == [(100, 9), (45, 9), (54, 9)]
    assert hits(trace) == [0, 40, 53]
    assert trace.unknown_keys == {"note": 3}


def test_replay_rounds_without_output(tmp_path: Path) -> None:
    """What was waited before them is waited by the next round."""
    text = REPLAY.replace("x,200,2", "x,200,3").replace("x,200,1", "x,200,2")
    text += "x,200,1,120,30,0,100\n"
    trace = read(tmp_path / "replay.csv", text)
    assert trace.skipped == {"round without output tokens": 1}
    assert awaited(trace)[2] == ([1], 112.25 * MS)


HEAD = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len\n0,0,0,0,1,1\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + "0,0,1,0,0,1\n", "line 3: prefix_len + input_len is 0"),
        (HEAD + "0,0,1,9999999,2,1\n", "line 3: prefix_len + input_len is 10000001; the limit"),
        (
            HEAD + "0,0,1,-5,2,1\n",
            "line 3: prefix_len is -5; it must be a whole number of at least",
        ),
        (HEAD + "0,0,1,0,2.5,1\n", "line 3: input_len is 2.5"),
        (HEAD + "0,0,1,0,2,\n", "line 3: output_len is empty"),
        (HEAD + "0,0,0,0,1,1\n", "line 3: round_idx is 0 as at"),
        (HEAD + "0,noon,1,0,1,1\n", "line 3: arrival_time is noon; it must be a time"),
        (HEAD + "0,nan,1,0,1,1\n", "line 3: arrival_time is"),
        (HEAD + "0,-1,1,0,1,1\n", "line 3: arrival_time is -1"),
        (HEAD + "0,1e99,1,0,1,1\n", "line 3: arrival_time is 1e99"),
        (HEAD + "0,0,1,0,1\n", "line 3: 5 columns where the header has 6"),
        (HEAD.splitlines()[0], "the trace is empty"),
    ],
)
def test_broken_replay(tmp_path: Path, text: str, words: str) -> None:
    assert words in failure(tmp_path / "r.csv", text)


@settings(max_examples=fuzz_examples())
@given(data=st.one_of(*map(broken_json, ROUNDS), broken_bytes(jsonl(*ROUNDS).encode())))
def test_fuzzed_rounds(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    check_fuzzed(tmp_path_factory.getbasetemp() / "fuzzed.jsonl", data, "tracelab")


@settings(max_examples=fuzz_examples())
@given(data=broken_bytes(REPLAY.encode()))
def test_fuzzed_replay(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    check_fuzzed(tmp_path_factory.getbasetemp() / "fuzzed.csv", data, "tracelab-replay")


def test_public_rounds(shared_dir: Path) -> None:
    path = shared_dir / "traces/tracelab/round_trace.jsonl"
    trace = open_trace(path)
    assert (trace.num_requests, trace.skipped, trace.unknown_keys) == (19, {}, {})
    prompts, outputs = zip(*lengths(trace), strict=True)
    assert (min(prompts), max(prompts)) == (9324, 48305)
    assert (min(outputs), max(outputs)) == (49, 2475)
    assert [rows for rows, _ in awaited(trace)].count([]) == 2  # sessions
    sessions = trace.chunks[0].sessions
    assert sessions is not None
    assert sorted(sessions.session.tolist()).count(0) == 10  # Claude; the other 9 are Codex
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    reported = sum(row["prefix_tokens"] for row in rows)
    assert any(f"had {reported:,} prompt tokens" in note for note in trace.notes)
    # All that the provider found of a session is found, and less than all prompt tokens.
    first = {row["session_id"]: row for row in reversed(rows)}.values()
    of_later_rounds = reported - sum(row["prefix_tokens"] for row in first)
    assert of_later_rounds <= sum(hits(trace)) < sum(prompts)


def test_public_replay(shared_dir: Path) -> None:
    trace = open_trace(shared_dir / "traces/tracelab/multi_session_example.csv")
    assert trace.num_requests == 8
    assert sum(1 for rows, _ in awaited(trace) if not rows) == 3  # sessions
    assert lengths(trace)[:3] == [(512, 64), (704, 64), (896, 64)]
    # Every prefix is the prompt and output before it, or a part of them.
    assert hits(trace) == [0, 575, 767, 0, 447, 0, 663, 784]
