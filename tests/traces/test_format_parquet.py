"""kvtwin's own Parquet with content and sessions: what breaks their rules is refused with its row."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from format_cases import awaited, failure
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.traces import Selection, describe, open_trace, select

PIECE = pa.struct([("stream", pa.int64()), ("start", pa.int64()), ("num_tokens", pa.int32())])
GOOD = {
    "arrival_ns": [0, 5, 9],
    "num_prompt_tokens": [4, 4, 4],
    "num_output_tokens": [2, 2, 2],
    "priority": [-1, 0, 1],
    "num_samples": [1, 2, 3],
    "session": [0, 0, -1],
    "call": [0, 1, 0],
    "after_call": [-1, 0, -1],
    "think_ns": [-1, 7, -1],
    "join_call": [1, -1, -1],
}
PIECES = [[(3, 0, 4), (9, 5, 2)], [(3, 0, 3)], []]


def write(path: Path, rows_in_a_group: int = 2, **changes: object) -> Path:
    pieces = changes.pop("content", PIECES)
    columns = {name: pa.array(changes.get(name, values)) for name, values in GOOD.items()}
    names = ("stream", "start", "num_tokens")
    if pieces is not None:
        lists = [
            [dict(zip(names, piece, strict=True)) for piece in row]
            for row in pieces  # type: ignore[attr-defined]
        ]
        columns["content"] = pa.array(lists, pa.large_list(PIECE))
    columns = {
        name: column for name, column in columns.items() if name not in changes.get("drop", ())
    }  # type: ignore[operator]
    grain = {b"kvtwin.content_block_tokens": changes.get("grain", b"1")}
    table = pa.table(columns).replace_schema_metadata(grain)  # type: ignore[arg-type]
    pq.write_table(table, path, row_group_size=rows_in_a_group)
    return path


def test_everything_in_two_row_groups(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "t.parquet"))
    assert [chunk.num_requests for chunk in trace.chunks] == [2, 1]
    first, second = trace.chunks
    assert first.content is not None
    assert first.content.offsets.tolist() == [0, 2, 3]
    assert first.content.num_tokens.tolist() == [4, 2, 3]
    assert second.priority is not None
    assert second.priority.tolist() == [1]
    assert second.sessions is not None
    assert second.sessions.session.tolist() == [-1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arrival_ns": [0, 5, 4]}, " row 3: arrival_ns is 4, earlier than 5 at "),
        ({"num_prompt_tokens": [4, 4, 0]}, " row 3: num_prompt_tokens is 0;"),
        ({"num_samples": [1, 0, 1]}, " row 2: num_samples is 0; it must be at least 1"),
        ({"priority": [0, None, 1]}, " row 2: priority is empty"),
        ({"session": [0, -2, 0]}, " row 2: session is -2; it must be at least -1"),
        ({"think_ns": [0, 0, -5]}, " row 3: think_ns is -5;"),
        (
            {"think_ns": [-1, 10**18 + 1, 0]},
            " row 2: think_ns is 1000000000000000001; it must be at",
        ),
        (
            {"num_samples": [1, 1, 10_001]},
            " row 3: num_samples is 10001; it must be at most 10,000",
        ),
        (
            {
                "session": [0, 7, 0],
                "call": [1, 0, 1],
                "after_call": [-1] * 3,
                "join_call": [-1] * 3,
            },
            " row 3: call is 1; it must be above those of",
        ),
        (
            {
                "session": [0, 0, 7],
                "call": [1, 0, 0],
                "after_call": [0, -1, -1],
                "join_call": [-1] * 3,
            },
            " row 2: call is 0;",
        ),
        (  # in the second row group, below the last of the first one
            {
                "session": [0, 0, 0],
                "call": [0, 2, 1],
                "after_call": [-1] * 3,
                "join_call": [-1] * 3,
            },
            " row 3: call is 1;",
        ),
        ({"after_call": [-1, 1, -1]}, " row 2: after_call is 1; it must be an earlier call"),
        ({"join_call": [0, -1, -1]}, " row 1: join_call is 0; it must be a later call"),
        ({"drop": ("think_ns",)}, ": column think_ns is missing beside session"),
        ({"content": [[(3, 0, 5), (9, 5, 2)], [], []]}, " row 1: content is 7; the request has"),
        ({"content": [[(3, 0, 1)], [(-1, 0, 1)], []]}, " row 2: number of pieces of content is 1;"),
        ({"content": [[(3, -1, 1)], [], []]}, "streams and starts are from 0"),
        ({"content": [[], [], [(3, 0, 0)]]}, " row 3: number of pieces of content is 1;"),
        ({"grain": b"0"}, "schema metadata kvtwin.content_block_tokens is 0"),
    ],
)
def test_broken_rules(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    assert words in failure(write(tmp_path / "t.parquet", **changes))


@given(
    columns=st.fixed_dictionaries(
        {
            "session": st.lists(st.sampled_from([-1, 0, 0, 1, 2**63 - 1]), min_size=3, max_size=3),
            "call": st.lists(st.integers(0, 3), min_size=3, max_size=3),
            "after_call": st.lists(st.integers(-1, 2), min_size=3, max_size=3),
            "think_ns": st.lists(st.sampled_from([-1, 0, 5, 10**18]), min_size=3, max_size=3),
            "join_call": st.lists(st.sampled_from([-1, -1, 1, 2, 3]), min_size=3, max_size=3),
        }
    ),
    rows_in_a_group=st.integers(1, 3),
)
def test_any_session_columns_are_refused_or_can_be_used(
    tmp_path_factory: pytest.TempPathFactory, columns: dict[str, list[int]], rows_in_a_group: int
) -> None:
    path = write(tmp_path_factory.getbasetemp() / "s.parquet", rows_in_a_group, **columns)
    calls = list(zip(columns["session"], columns["call"], strict=True))
    in_sessions = [call for call in calls if call[0] != -1]
    is_good = all(
        before[1] < after[1]
        for i, after in enumerate(in_sessions)
        for before in in_sessions[:i]
        if before[0] == after[0]
    )
    is_good &= all(map(int.__lt__, columns["after_call"], columns["call"]))
    is_good &= all(
        join in (-1, *range(call + 1, 9))
        for join, call in zip(columns["join_call"], columns["call"], strict=True)
    )
    if not is_good:
        failure(path)
        return
    trace = open_trace(path)
    row_of = {call: row for row, call in enumerate(calls) if call[0] != -1}
    for row, (rows, _) in enumerate(awaited(trace)):
        session, after = columns["session"][row], columns["after_call"][row]
        named = [row_of.get((session, after))] if session != -1 else []
        named += [
            other
            for other in range(3)
            if session != -1
            and columns["session"][other] == session
            and columns["join_call"][other] == columns["call"][row]
        ]
        assert rows == sorted(other for other in named if other is not None)
    summary = describe(trace).sessions
    assert summary is not None
    assert summary.num_sessions == len({session for session, _ in in_sessions})
    assert select(trace, Selection(sample=1.0)).num_requests == 3


def test_content_of_another_type(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", content=None)
    table = pq.read_table(path).append_column("content", pa.array([[1], [2], [3]]))
    pq.write_table(table, path)
    assert "content has type list" in failure(path)
