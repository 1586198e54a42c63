"""What is written comes back, and nothing is ever half-written."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.traces import (
    WRITABLE_FORMATS,
    Content,
    Sessions,
    Trace,
    TraceChunk,
    UserError,
    open_trace,
    synthesize,
    write_trace,
)
from kvtwin.traces.formats import kvtwin_csv
from kvtwin.traces.sessions import COLUMNS as SESSION_COLUMNS

COUNTS = st.integers(1, 10_000_000)


OPTIONAL = ("content", "sessions", "priority", "num_samples")
PIECES = st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(1, 5))


def content_of(rows: list[list[tuple[int, int, int]]]) -> Content:
    pieces = np.array([piece for row in rows for piece in row], dtype=np.int64).reshape(-1, 3)
    return Content(16, np.cumsum([0, *map(len, rows)]), *pieces.T)


def sessions_of(first: int, size: int, waits_for_all: bool) -> Sessions:
    call = np.arange(first, first + size)
    return Sessions(
        np.full(size, 7), call, call - 1, call * 10 - 1, call + 1 if waits_for_all else call * 0 - 1
    )


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """One to three chunks of anything a trace may hold."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    n = sum(sizes)
    gaps = draw(st.lists(st.integers(0, 10**16), min_size=n - 1, max_size=n - 1))
    arrivals = np.cumsum([0, *gaps], dtype=np.int64)
    present = draw(st.sets(st.sampled_from(OPTIONAL)))
    chunks = []
    for start, num in zip(np.cumsum([0, *sizes]).tolist(), sizes, strict=False):
        column = st.lists(COUNTS, min_size=num, max_size=num)
        limits = st.lists(st.one_of(st.just(-1), COUNTS), min_size=num, max_size=num)
        rows = draw(st.lists(st.lists(PIECES, max_size=3), min_size=num, max_size=num))
        room = np.array([sum(piece[2] for piece in row) for row in rows])
        parts = {
            "content": content_of(rows),
            "sessions": sessions_of(start, num, draw(st.booleans())),
            "priority": np.arange(num) - 3,
            "num_samples": np.arange(num) + 1,
        }
        chunks.append(
            TraceChunk(
                arrivals[start : start + num],
                np.maximum(draw(column), room),
                np.array(draw(column)),
                np.array(draw(limits)),
                **{name: parts[name] for name in present},  # type: ignore[arg-type]
            )
        )
    return Trace("t", "any", tuple(chunks))


def columns(trace: Trace) -> dict[str, list[int]]:
    names = ("arrival_ns", "num_prompt_tokens", "num_output_tokens", "max_tokens")
    return {name: [v for c in trace.chunks for v in getattr(c, name).tolist()] for name in names}


def parts(trace: Trace) -> dict[str, object]:
    """All that is optional, request by request."""
    found: dict[str, object] = {}
    for chunk in trace.chunks:
        if (c := chunk.content) is not None:
            pieces = list(zip(c.streams.tolist(), c.starts.tolist(), c.num_tokens, strict=True))
            rows = [pieces[a:b] for a, b in zip(c.offsets, c.offsets[1:], strict=False)]
            found.setdefault("content", []).extend(rows)  # type: ignore[attr-defined]
        if (s := chunk.sessions) is not None:
            rows = list(zip(*(getattr(s, name).tolist() for name in SESSION_COLUMNS), strict=True))
            found.setdefault("sessions", []).extend(rows)  # type: ignore[attr-defined]
        for name in ("priority", "num_samples"):
            if getattr(chunk, name) is not None:
                found.setdefault(name, []).extend(getattr(chunk, name))  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("format", ["kvtwin-csv", "kvtwin-parquet", "vidur"])
@given(trace=traces())
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, format: str, trace: Trace) -> None:
    path = tmp_path_factory.getbasetemp() / f"round-trip.{format}"
    lost = write_trace(trace, path, format, force=True)
    back = open_trace(path)
    assert (back.name, back.format) == ("round-trip", format)
    wanted = columns(trace)
    has_limits = set(wanted["max_tokens"]) != {-1}
    has_parts = {name for name in OPTIONAL if getattr(trace.chunks[0], name) is not None}
    assert ("max_tokens" in lost) == (has_limits and format == "vidur")
    kept = parts(trace) if format == "kvtwin-parquet" else {}
    assert set(lost) - {"max_tokens"} == has_parts - kept.keys()
    if format == "vidur":
        wanted["max_tokens"] = [-1] * trace.num_requests
    # All are exact to the nanosecond; Vidur's seconds have nine decimal places.
    assert columns(back) == wanted
    assert parts(back) == kept


def test_mooncake_has_whole_milliseconds_and_ids_of_blocks(tmp_path: Path) -> None:
    """Two prompts of 600 tokens that share their first block, and no content id for outputs."""
    content = content_of([[(1, 0, 512), (2, 0, 88)], [(1, 0, 512), (3, 0, 88)], [(1, 0, 512)]])
    ones = np.ones(3, dtype=np.int64)
    chunk = TraceChunk(
        np.array([0, 1_999_999, 2 * 10**6]), np.array([600, 600, 512]), ones, ones, content
    )
    lost = write_trace(Trace("t", "any", (chunk,)), tmp_path / "t.jsonl", "mooncake")
    assert set(lost) == {"nanoseconds", "max_tokens", "content inside blocks of 512 tokens"}
    assert (tmp_path / "t.jsonl").read_text().splitlines() == [
        '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}',
        '{"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [0, 2]}',
        '{"timestamp": 2, "input_length": 512, "output_length": 1, "hash_ids": [0]}',
    ]


def test_mooncake_heads_of_one_prompt_that_differ_in_length_differ_in_their_last_id(
    tmp_path: Path,
) -> None:
    content = content_of([[(1, 0, 700)], [(1, 0, 600)], [(1, 0, 650)], [(1, 0, 600)]])
    ones = np.ones(4, dtype=np.int64)
    chunk = TraceChunk(ones - 1, np.array([700, 600, 650, 600]), ones, -ones, content)
    write_trace(Trace("t", "any", (chunk,)), tmp_path / "t.jsonl", "mooncake")
    rows = map(json.loads, (tmp_path / "t.jsonl").read_text().splitlines())
    assert [row["hash_ids"] for row in rows] == [[0, 1], [0, 2], [0, 3], [0, 2]]


@pytest.mark.parametrize("name", ["conversation_trace", "synthetic_trace"])
def test_public_mooncake_slices_come_back_byte_for_byte(
    shared_dir: Path, tmp_path: Path, name: str
) -> None:
    """Through kvtwin's Parquet, too. Both slices begin where their files do, so ids stay."""
    source = shared_dir / f"traces/mooncake/{name}.slice.jsonl"
    assert write_trace(open_trace(source), tmp_path / "t.parquet", "kvtwin-parquet") == ()
    write_trace(open_trace(tmp_path / "t.parquet"), tmp_path / "t.jsonl", "mooncake")
    assert (tmp_path / "t.jsonl").read_bytes() == source.read_bytes()


def test_parquet_of_the_first_version(tmp_path: Path) -> None:
    """It had an id for each block of a prompt; a file of it as it was written then."""
    old = {
        "arrival_ns": pa.array([0, 5]),
        "num_prompt_tokens": pa.array([20, 8]),
        "num_output_tokens": pa.array([1, 1]),
        "max_tokens": pa.array([None, 3], pa.int64()),
        "content_ids": pa.array([[4, 9], [4]], pa.large_list(pa.uint64())),
    }
    metadata = {b"kvtwin.content_block_tokens": b"16"}
    pq.write_table(pa.table(old).replace_schema_metadata(metadata), tmp_path / "old.parquet")
    content = open_trace(tmp_path / "old.parquet").chunks[0].content
    assert content is not None
    assert content.offsets.tolist() == [0, 2, 3]
    assert content.starts.tolist() == [64, 144, 64]
    assert content.num_tokens.tolist() == [16, 4, 8]
    old["content_ids"] = pa.array([[4], [4]], pa.large_list(pa.uint64()))
    pq.write_table(pa.table(old).replace_schema_metadata(metadata), tmp_path / "bad.parquet")
    with pytest.raises(UserError, match="row 1: number of content_ids is 1; the prompt has"):
        open_trace(tmp_path / "bad.parquet")


def test_same_trace_same_bytes(tmp_path: Path) -> None:
    trace = synthesize("alpaca-like", 50, 3, rate=1.0)
    for format in WRITABLE_FORMATS:
        write_trace(trace, tmp_path / "a", format, force=True)
        write_trace(trace, tmp_path / "b", format, force=True)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_vidur_file_is_what_vidur_reads(tmp_path: Path) -> None:
    one = np.array([1, 1])
    trace = Trace("t", "any", (TraceChunk(np.array([0, 1_000_000_007]), one, one + 1, -one),))
    write_trace(trace, tmp_path / "v.csv", "vidur")
    assert (tmp_path / "v.csv").read_bytes() == (
        b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.000000000,1,2\n1.000000007,1,2\n"
    )


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("mine")
    trace = synthesize("alpaca-like", 3, 1)
    with pytest.raises(
        UserError, match=r"t\.csv exists already; choose another name or give --force"
    ):
        write_trace(trace, path, "kvtwin-csv")
    assert path.read_text() == "mine"
    write_trace(trace, path, "kvtwin-csv", force=True)
    assert open_trace(path).num_requests == 3
    with pytest.raises(UserError, match=r"exists already; choose another name$"):
        write_trace(trace, tmp_path, "kvtwin-csv", force=True)


def test_places_and_formats_that_cannot_be_written(tmp_path: Path) -> None:
    trace = synthesize("alpaca-like", 3, 1)
    with pytest.raises(UserError, match=r"cannot be written: No such file or directory"):
        write_trace(trace, tmp_path / "none" / "t.csv", "kvtwin-csv")
    with pytest.raises(UserError, match="format is azure; formats that can be written: kvtwin-csv"):
        write_trace(trace, tmp_path / "t.csv", "azure")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text("mine")

    def full_disk(trace: Trace, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kvtwin_csv, "write", full_disk)
    with pytest.raises(UserError, match=r"cannot be written: No space left on device"):
        write_trace(synthesize("alpaca-like", 3, 1), path, "kvtwin-csv", force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]
    assert path.read_text() == "mine"
