"""Weka sessions: floor blocks, ids local to a file, forks and joins at subagents."""

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
    lengths,
    read,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.traces import open_trace

Json = dict[str, Any]


def call(t: float, ids: list[int], rest: int = 0, out: int = 5, **more: Any) -> Json:
    """A call of 64 tokens for each id and `rest` more."""
    given = {"t": t, "type": "n", "model": "opus", "in": 64 * len(ids) + rest, "out": out}
    return given | {"hash_ids": ids} | more


def subagent(t: float, duration_ms: float | None, *requests: Json, **more: Any) -> Json:
    given = {"t": t, "type": "subagent", "duration_ms": duration_ms, "models": ["haiku"]}
    return given | {"requests": list(requests)} | more


def session(*requests: Json, **more: Any) -> Json:
    given = {"id": "s", "models": ["opus"], "block_size": 64, "hash_id_scope": "local"}
    return given | {"requests": list(requests)} | more


# A call of 2 s; 0.5 s later two parallel subagents, of 3 and 6.5 s; 1 s after both the next call.
FORKED = session(
    call(0, [1, 2], api_time=2.0, think_time=0.0),
    subagent(
        5.5,
        3000,
        call(0, [9], model="haiku", api_time=1.0, think_time=0.0),
        call(2.5, [9, 10], model="haiku", api_time=0.5, think_time=1.5),
    ),
    subagent(9.0, 6500, call(0, [9], model="haiku", api_time=6.5, think_time=0.0)),
    call(10, [1, 2, 3], api_time=1.0, think_time=8.0),
    call(14.25, [1, 2, 3, 4], think_time=3.25),
)


def test_times_lengths_and_blocks(tmp_path: Path) -> None:
    trace = read(
        tmp_path / "one.json",
        session(
            call(0, [1, 2], rest=63, api_time=1.5, think_time=0),
            call(4.0000000004, [1, 2, 3], out=7, api_time=1, think_time=2.25, ttft=0.5, stop="x"),
            call(9, [], rest=17, think_time=1, surprise=1),
        ),
    )
    assert (trace.name, trace.format) == ("one", "weka")
    assert column(trace, "arrival_ns") == [0, 4 * S, 9 * S]
    assert lengths(trace) == [(191, 5), (192, 7), (17, 5)]
    assert hits(trace) == [0, 128, 0]  # the 63 tokens of the first that have no id are its own
    assert hits(trace, 64) == [0, 2, 0]
    assert hits(trace, 16) == [0, 8, 0]  # each block split in four
    assert awaited(trace) == [([], -1), ([0], 2_250_000_000), ([1], S)]
    assert trace.unknown_keys == {"surprise": 1}
    assert trace.skipped == {}
    assert trace.notes == ("sessions have no start times: each starts at 0",)


def test_subagents_fork_and_join(tmp_path: Path) -> None:
    trace = read(tmp_path / "forked.json", FORKED)
    # In order of arrival: the first call, both subagents' first, the second of one, the rest.
    assert column(trace, "arrival_ns") == [0, 2.5 * S, 2.5 * S, 5 * S, 10 * S, 14.25 * S]
    assert awaited(trace) == [
        ([], -1),
        ([0], 0.5 * S),
        ([0], 0.5 * S),
        ([1], 1.5 * S),
        ([0, 2, 3], S),  # a second after the longer subagent, not the 8 since the call before
        ([4], 3.25 * S),
    ]


def test_models_share_nothing(tmp_path: Path) -> None:
    parent = session(
        call(0, [1, 2], api_time=1),
        subagent(3, 1000, call(0, [1], model="haiku")),
        subagent(5, 1000, call(0, [1]) | {"model": None}),  # its marker says haiku
        call(6, [1, 2]),
    )
    assert hits(read(tmp_path / "models.json", parent), 64) == [0, 0, 1, 2]


def test_only_what_had_ended_is_joined(tmp_path: Path) -> None:
    trace = read(
        tmp_path / "overlap.json",
        session(
            call(0, [1], api_time=1),
            call(4, [1], api_time=1, think_time=3),  # while the subagent of 2 to 6 runs
            subagent(6, 4000, call(0, [7]), call(1, [7], think_time=0.5)),
            call(9, [1], api_time=1, think_time=4),
        ),
    )
    assert column(trace, "arrival_ns") == [0, 2 * S, 3 * S, 4 * S, 9 * S]
    assert [rows for rows, _ in awaited(trace)] == [[], [0], [1], [0], [2, 3]]
    assert awaited(trace)[4][1] == 3 * S  # since the subagent's end


def test_background_subagents_are_not_waited_for(tmp_path: Path) -> None:
    trace = read(
        tmp_path / "background.json",
        session(
            call(0, [1], api_time=1),
            subagent(2, None, call(0, [7]), call(1, [7]), call(30, [7]), status="async_launched"),
            subagent(3, None, call(0.5, [7]), call(0, [7])),
            call(5, [1], think_time=4),
        ),
    )
    assert column(trace, "arrival_ns") == [0, 2 * S, 3 * S, 3 * S, 3.5 * S, 5 * S, 32 * S]
    assert [rows for rows, _ in awaited(trace)] == [[], [0], [1], [0], [3], [0], [2]]
    assert any("2 subagents have no duration" in note for note in trace.notes)


def test_nested_subagents(tmp_path: Path) -> None:
    inner = subagent(4, 2000, call(0, [8], api_time=2))
    outer = subagent(8, 6000, call(0, [7], api_time=1), inner, call(5, [7], api_time=1))
    trace = read(tmp_path / "nested.json", session(call(0, [1], api_time=1), outer, call(9, [1])))
    # The outer one starts at 2, the inner one 2 after that, and the outer goes on at 7.
    assert column(trace, "arrival_ns") == [0, 2 * S, 4 * S, 7 * S, 9 * S]
    assert [rows for rows, _ in awaited(trace)] == [[], [0], [1], [1, 2], [0, 3]]


def test_an_agent_that_ends_with_a_subagent(tmp_path: Path) -> None:
    """Whoever waits for the agent waits for its subagent too."""
    inner = subagent(4, 2000, call(0, [8], api_time=2))
    outer = subagent(6.5, 4500, call(0, [7], api_time=1), inner)
    trace = read(tmp_path / "last.json", session(call(0, [1], api_time=1), outer, call(9, [1])))
    assert column(trace, "arrival_ns") == [0, 2 * S, 4 * S, 9 * S]
    assert [rows for rows, _ in awaited(trace)] == [[], [0], [1], [0, 1, 2]]


def test_a_subagent_whose_calls_go_on_after_its_end(tmp_path: Path) -> None:
    """Nobody waits for what came later; the recording contradicts itself."""
    late = subagent(3, 1000, call(0, [7]), call(5, [7], think_time=4))
    trace = read(tmp_path / "late.json", session(call(0, [1], api_time=1), late, call(4, [1])))
    assert column(trace, "arrival_ns") == [0, 2 * S, 4 * S, 7 * S]
    assert [rows for rows, _ in awaited(trace)] == [[], [0], [0], [1]]


def test_times_of_the_session_inside_a_subagent(tmp_path: Path) -> None:
    absolute = json.loads(json.dumps(FORKED))
    for marker, start in ((absolute["requests"][1], 2.5), (absolute["requests"][2], 2.5)):
        for request in marker["requests"]:
            request["t"] += start
    trace, same = read(tmp_path / "a.json", absolute), read(tmp_path / "b.json", FORKED)
    assert column(trace, "arrival_ns") == column(same, "arrival_ns")
    assert awaited(trace) == awaited(same)
    assert any("2 subagents have calls of which none starts at 0" in note for note in trace.notes)


def test_subagent_before_the_first_call(tmp_path: Path) -> None:
    trace = read(
        tmp_path / "early.json", session(subagent(3, 4000, call(0, [7])), call(5, [1], api_time=1))
    )
    assert column(trace, "arrival_ns") == [0, 6 * S]  # the session starts with the subagent, at -1
    assert awaited(trace) == [([], -1), ([0], 2 * S)]


def test_failed_calls_are_counted(tmp_path: Path) -> None:
    """The think time of the next call is that since the call before the failed one."""
    calls = [call(0, [1], api_time=11), call(40, [1], out=0), call(142, [1], think_time=131)]
    trace = read(tmp_path / "failed.json", session(*calls))
    assert trace.skipped == {"failed call, no output tokens": 1}
    assert awaited(trace) == [([], -1), ([0], 131 * S)]


def test_think_times_that_are_not_recorded(tmp_path: Path) -> None:
    calls = [call(0, [1], api_time=3), call(5, [1]), call(9, [1]), call(8, [1])]
    trace = read(tmp_path / "untimed.json", session(*calls))
    assert awaited(trace) == [([], -1), ([0], 2 * S), ([1], 3 * S), ([2], S)]
    assert any("2 think times hold the service time" in note for note in trace.notes)


def test_folder(tmp_path: Path) -> None:
    """Ids mean the same in all files only where the files say so."""
    one, last = session(call(0, [1, 2]), call(1, [1, 2])), session(call(7, [9]))
    two = session(call(0.5, [1, 2, 3]), call(3.5, [5]), call(4.5, [5]))
    write(tmp_path / "0.json", last)
    write(tmp_path / "a.json", one)
    write(tmp_path / "b.json.gz", two)
    write(tmp_path / "c.json", {"models": {}})
    (tmp_path / "readme.txt").write_text("not read")
    trace = open_trace(tmp_path)
    assert (trace.name, trace.format) == (tmp_path.name, "weka")
    assert trace.skipped == {"file of the folder in another format": 1}
    assert column(trace, "arrival_ns") == [0, 0, 0, S, 3 * S, 4 * S]
    assert lengths(trace) == [(64, 5), (128, 5), (192, 5), (128, 5), (64, 5), (64, 5)]
    assert [rows for rows, _ in awaited(trace)] == [[], [], [], [1], [2], [4]]
    assert hits(trace, 64) == [0, 0, 0, 2, 0, 1]
    for name, content in (("a.json", one), ("b.json.gz", two)):
        write(tmp_path / name, content | {"hash_id_scope": "global"})
    assert hits(open_trace(tmp_path), 64) == [0, 0, 2, 2, 0, 1]
    write(tmp_path / "b.json.gz", two | {"block_size": 32, "requests": [call(0, [], rest=3)]})
    assert "b.json.gz line 1: block_size is 32; it must be 64" in failure(tmp_path)


def test_lines_order_of_keys_and_marks(tmp_path: Path) -> None:
    text = json.dumps(FORKED, indent=1)
    for name, data in {
        "crlf": b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(),
        "blank": b"\n \n" + json.dumps(dict(reversed(FORKED.items()))).encode() + b"\n\n",
    }.items():
        assert lengths(read(tmp_path / name, data)) == lengths(read(tmp_path / "x", FORKED))


def test_large_ids(tmp_path: Path) -> None:
    ids = [2**64 - 1, 2**63, 5]
    trace = read(tmp_path / "u64.json", session(call(0, ids), call(1, ids), call(2, [2**63, 5])))
    assert hits(trace, 64) == [0, 3, 0]


BROKEN: list[tuple[str, Any, tuple[str, ...]]] = [
    ("no requests", session(), ("the trace is empty",)),
    ("only failed", session(call(0, [1], out=0)), ("the trace is empty", "1 x failed call")),
    ("not a list", session() | {"requests": 3}, ("requests is 3; it must be a list",)),
    ("number", session(3), ("requests[0] is 3; it must be an object",)),  # type: ignore[arg-type]
    ("block size", session(block_size=0), ("block_size is 0", "from 1 to")),
    ("block size text", session(block_size="64"), ('block_size is "64"',)),
    ("scope", session(call(0, [1]), hash_id_scope="mine"), ('"mine"; it must be one of local',)),
    ("floor", session(call(0, [1], rest=64)), ("requests[0].hash_ids has 1 ids; 128", "need 2")),
    ("ceil", session(call(0, [1], rest=-1)), ("has 1 ids; 63 tokens in need 0",)),
    ("id", session(call(0, [2**64])), ("hash_ids is [18446744073709551616]", "below 2^64")),
    ("negative id", session(call(0, [-1])), ("requests[0].hash_ids is [-1]",)),
    ("ids", session(call(0, []) | {"hash_ids": None}), ("requests[0].hash_ids is null",)),
    ("text", session(call(0, []) | {"in": "12"}), ('requests[0].in is "12"', "whole number")),
    ("zero", session(call(0, [])), ("requests[0].in is 0; it must be a whole number of at least",)),
    ("fraction", session(call(0, [1], out=1.5)), ("requests[0].out is 1.5",)),  # type: ignore[arg-type]
    ("absurd", session(call(0, [1], out=10**9)), ("requests[0].out is 1000000000; the limit",)),
    ("bool", session(call(0, [1], out=True)), ("requests[0].out is true",)),
    ("missing", session({"t": 0, "type": "n"}), ("key out of requests[0] is missing", "t, type")),
    ("time", session(call(-1, [1])), ("requests[0].t is -1", "written as seconds")),
    ("nan", session(call(float("nan"), [1])), ("requests[0].t is NaN",)),
    ("late", session(call(1e300, [1])), ("requests[0].t is 1e+300", "1,000,000,000 s")),
    ("time text", session(call("0", [1])), ('requests[0].t is "0"',)),  # type: ignore[arg-type]
    ("think", session(call(0, [1]), call(1, [1], think_time=-2)), ("[1].think_time is -2",)),
    ("type", session(call(0, [1], type="z")), ('requests[0].type is "z"', "n, s, subagent")),
    ("model", session(call(0, [1], model=3)), ("requests[0].model is 3; it must be text",)),
    ("inner", session(subagent(1, 5, call(0, [1], out=-1))), ("requests[0].requests[0].out is",)),
    ("duration", session(subagent(1, -5, call(0, [1]))), ("requests[0].duration_ms is -5",)),
    ("truncated", json.dumps(FORKED)[:200], ("line 1: cannot be read as JSON", "column")),
    ("truncated lines", json.dumps(FORKED, indent=1)[:200], (" line ", "column")),
    ("deep", '{"block_size": 64, "requests": ' + "[" * 100_000, ("cannot be read as JSON",)),
    ("not UTF-8", b'{"block_size": 64, "requests": "\xff"}', ("cannot be read as JSON", "utf-8")),
    ("second line", json.dumps(FORKED) + "\n{]\n", ("line 2: not one complete JSON object",)),
]


@pytest.mark.parametrize(("content", "words"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_broken_files(tmp_path: Path, content: Any, words: tuple[str, ...]) -> None:
    message = failure(tmp_path / "s.json", content)
    for word in words:
        assert word in message


def test_folder_without_sessions(tmp_path: Path) -> None:
    assert "is a directory without a known kind of trace" in failure(tmp_path)


@settings(max_examples=fuzz_examples())
@given(data=st.one_of(broken_json(FORKED), broken_bytes(json.dumps(FORKED).encode())))
def test_fuzzed(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    check_fuzzed(tmp_path_factory.getbasetemp() / "fuzzed.json", data, "weka")
