"""What is written comes back, and nothing is ever half-written."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.traces import (
    WRITABLE_FORMATS,
    ContentIds,
    Trace,
    TraceChunk,
    UserError,
    open_trace,
    synthesize,
    write_trace,
)
from kvtwin.traces.formats import kvtwin_csv

COUNTS = st.integers(1, 10_000_000)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """One to three chunks of anything a trace may hold."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    n = sum(sizes)
    gaps = draw(st.lists(st.integers(0, 10**16), min_size=n - 1, max_size=n - 1))
    arrivals = np.cumsum([0, *gaps], dtype=np.int64)
    has_content = draw(st.booleans())
    chunks = []
    for start, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
        column = st.lists(COUNTS, min_size=size, max_size=size)
        limits = st.lists(st.one_of(st.just(-1), COUNTS), min_size=size, max_size=size)
        ids = st.lists(st.integers(0, 2**64 - 1), max_size=3)
        lists = draw(st.lists(ids, min_size=size, max_size=size))
        chunks.append(
            TraceChunk(
                arrivals[start : start + size],
                np.array(draw(column)),
                np.array(draw(column)),
                np.array(draw(limits)),
                ContentIds(
                    16,
                    np.cumsum([0, *map(len, lists)]),
                    np.array([i for row in lists for i in row], dtype=np.uint64),
                )
                if has_content
                else None,
            )
        )
    return Trace("t", "any", tuple(chunks))


def columns(trace: Trace) -> dict[str, list[int]]:
    names = ("arrival_ns", "num_prompt_tokens", "num_output_tokens", "max_tokens")
    return {name: [v for c in trace.chunks for v in getattr(c, name).tolist()] for name in names}


def id_lists(trace: Trace) -> list[list[int]]:
    return [
        c.content.ids[start:end].tolist()
        for c in trace.chunks
        if c.content is not None
        for start, end in zip(c.content.offsets, c.content.offsets[1:], strict=False)
    ]


@pytest.mark.parametrize("format", WRITABLE_FORMATS)
@given(trace=traces())
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, format: str, trace: Trace) -> None:
    path = tmp_path_factory.getbasetemp() / f"round-trip.{format}"
    lost = write_trace(trace, path, format, force=True)
    back = open_trace(path)
    assert (back.name, back.format) == ("round-trip", format)
    wanted = columns(trace)
    has_limits = set(wanted["max_tokens"]) != {-1}
    has_content = trace.chunks[0].content is not None
    assert ("max_tokens" in lost) == (has_limits and format == "vidur")
    assert ("content ids" in lost) == (has_content and format != "kvtwin-parquet")
    if format == "vidur":
        wanted["max_tokens"] = [-1] * trace.num_requests
    # All three are exact to the nanosecond; Vidur's seconds have nine decimal places.
    assert columns(back) == wanted
    assert id_lists(back) == (id_lists(trace) if format == "kvtwin-parquet" else [])


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
    with pytest.raises(UserError, match=r"t\.csv exists already; choose another name or force it"):
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
