"""kvtwin's own Parquet with content and sessions: what breaks their rules is refused with its row."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from format_cases import failure

from kvtwin.traces import open_trace

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


def test_content_of_another_type(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", content=None)
    table = pq.read_table(path).append_column("content", pa.array([[1], [2], [3]]))
    pq.write_table(table, path)
    assert "content has type list" in failure(path)
