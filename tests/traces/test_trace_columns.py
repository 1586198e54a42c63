"""The Trace itself: what it accepts, shortening, changing the rate."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.traces import Content, Trace, TraceChunk, UserError


def chunk(arrival_ns: list[int], first_token: int = 1, content: bool = False) -> TraceChunk:
    n = len(arrival_ns)
    tokens = np.arange(first_token, first_token + n)
    ones = np.ones(2 * n, dtype=np.int64)
    pieces = Content(4, np.arange(n + 1) * 2, np.arange(2 * n), ones, ones) if content else None
    return TraceChunk(np.array(arrival_ns), tokens, tokens + 1, np.full(n, -1), pieces)


def trace(*chunks: TraceChunk) -> Trace:
    return Trace("t", "kvtwin-csv", chunks)


def test_head_counts_across_chunks() -> None:
    whole = trace(chunk([0, 1], 1, True), chunk([1, 5, 9], 3, True))
    assert whole.num_requests == 5
    head = whole.head(3)
    assert [c.arrival_ns.tolist() for c in head.chunks] == [[0, 1], [1]]
    assert head.chunks[1].content is not None
    assert head.chunks[1].content.streams.tolist() == [0, 1]
    assert whole.head(2).num_requests == 2
    assert len(whole.head(2).chunks) == 1
    assert whole.head(99).num_requests == 5
    with pytest.raises(UserError, match="num_requests is 0; it must be at least 1"):
        whole.head(0)


def test_saturated() -> None:
    assert trace(chunk([3, 3]), chunk([3])).saturated
    assert not trace(chunk([3, 3]), chunk([4])).saturated


@given(
    arrivals=st.lists(st.integers(0, 10**15), min_size=1, max_size=30).map(sorted),
    factor=st.floats(1e-2, 1e4),
)
def test_scaled_arrivals_are_rounded_once(arrivals: list[int], factor: float) -> None:
    scaled = trace(chunk(arrivals)).scale_rate(factor).chunks[0].arrival_ns.tolist()
    assert scaled[0] == arrivals[0]
    for before, after in zip(arrivals, scaled, strict=True):
        error = after - arrivals[0] - Fraction(before - arrivals[0]) / Fraction(factor)
        assert Fraction(-1, 2) < error <= Fraction(1, 2)


def test_scaling_by_1_changes_nothing_else() -> None:
    whole = replace(trace(chunk([0, 10**17])), clipped_rows=(1,), skipped={"blank line": 2})
    same = whole.scale_rate(1.0)
    assert same.chunks[0].arrival_ns.tolist() == [0, 10**17]
    assert (same.num_clipped, same.skipped) == (1, {"blank line": 2})


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_rate_scale(factor: float) -> None:
    with pytest.raises(UserError, match=r"rate scale is .*; it must be a finite number above 0"):
        trace(chunk([0, 5])).scale_rate(factor)


def test_rate_scale_that_outgrows_the_clock() -> None:
    with pytest.raises(UserError, match=r"limit of 1,000,000,000 s; use a larger one"):
        trace(chunk([0, 10**10])).scale_rate(1e-9)
    with pytest.raises(UserError, match=r"limit of 1,000,000,000 s"):
        trace(chunk([0, 5])).scale_rate(5e-324)


def test_columns_cannot_be_written() -> None:
    source = np.array([0, 1])
    one = TraceChunk(source, source + 1, source + 1, source + 1)
    with pytest.raises(ValueError, match="read-only"):
        one.arrival_ns[0] = 7
    source[0] = 0  # the caller's own array stays the caller's


GOOD = {"arrival_ns": [0, 1], "num_prompt_tokens": [1, 2], "num_output_tokens": [1, 1]}


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("arrival_ns", [1, 0], "arrival_ns decreases"),
        ("arrival_ns", [-1, 0], "arrival_ns starts at -1"),
        ("arrival_ns", [0.5, 1.0], "float64"),
        ("num_prompt_tokens", [1], "differ in length"),
        ("num_prompt_tokens", [0, 1], "a prompt of 0"),
        ("num_output_tokens", [1, 0], "an output of 0"),
        ("max_tokens", [1, 0], "max_tokens of 0"),
        ("max_tokens", [-2, 1], "max_tokens of -2"),
    ],
)
def test_bugs_are_assertions(column: str, values: list[float], words: str) -> None:
    columns = GOOD | {"max_tokens": [-1, 4]} | {column: values}
    with pytest.raises(AssertionError, match=words):
        TraceChunk(**{name: np.array(column) for name, column in columns.items()})


def test_content_bugs_are_assertions() -> None:
    def content(offsets: list[int], streams: list[int], tokens: int = 1) -> Content:
        full = np.full(len(streams), tokens)
        return Content(4, np.array(offsets), np.array(streams), full, full)

    with pytest.raises(AssertionError, match="offsets ends with 3 but streams has shape"):
        content([0, 3], [1, 2])
    with pytest.raises(AssertionError, match="stream -1"):
        content([0, 1], [-1])
    with pytest.raises(AssertionError, match="a piece of 0 tokens"):
        content([0, 1], [1], tokens=0)
    with pytest.raises(AssertionError, match="offsets starts with 1"):
        content([1, 2], [1, 2])
    with pytest.raises(AssertionError, match="2 content offsets for 2 requests"):
        replace(chunk([0, 1]), content=content([0, 1], [1]))
    with pytest.raises(AssertionError, match="more content than tokens"):
        replace(chunk([0]), content=content([0, 1], [1], tokens=4))
    with pytest.raises(AssertionError, match="chunks differ in content block tokens"):
        trace(chunk([0], content=True), chunk([1]))
