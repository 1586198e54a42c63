"""Parts of a trace, other speeds, and batches spread over time."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from format_cases import column
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.traces import Selection, Sessions, Trace, TraceChunk, UserError, select, spread_batches

S = 10**9


def trace_of(arrivals: list[int], session: list[int] | None = None, cut: int = 2) -> Trace:
    """Requests of 1, 2, 3 ... prompt tokens, in two chunks."""
    chunks, prompts = [], np.arange(1, len(arrivals) + 1)
    for part in (slice(cut), slice(cut, None)):
        ones = np.ones(len(prompts[part]), dtype=np.int64)
        if not len(ones):
            continue
        sessions = None
        if session is not None:
            numbers, calls = np.array(session[part]), np.arange(len(arrivals))[part]
            sessions = Sessions(numbers, calls, -ones, calls * 0 + 7, -ones)
        chunks.append(
            TraceChunk(np.array(arrivals[part]), prompts[part], ones, -ones, sessions=sessions)
        )
    return Trace(
        "t", "any", tuple(chunks), clipped_rows=tuple(row for row in (1, 3) if row < len(arrivals))
    )


def kept(trace: Trace, **selection: object) -> tuple[list[int], list[int]]:
    part = select(trace, Selection(**selection))  # type: ignore[arg-type]
    return column(part, "num_prompt_tokens"), column(part, "arrival_ns")


def test_skip_window_and_number_apply_in_this_order() -> None:
    trace = trace_of([0, S, 2 * S, 2 * S + 1, 4 * S, 9 * S])
    assert kept(trace) == ([1, 2, 3, 4, 5, 6], [0, S, 2 * S, 2 * S + 1, 4 * S, 9 * S])
    assert kept(trace, skip=4) == ([5, 6], [0, 5 * S])
    # Seconds after the first arrival of the file, the end excluded.
    assert kept(trace, window_s=(1.0, 4.0)) == ([2, 3, 4], [0, S, S + 1])
    assert kept(trace, skip=2, window_s=(1.0, 4.0), num_requests=1) == ([3], [0])
    assert kept(trace, num_requests=99)[0] == [1, 2, 3, 4, 5, 6]
    assert select(trace, Selection(skip=1)).clipped_rows == (0, 2)
    assert select(trace, Selection(skip=2)).clipped_rows == (1,)


def test_how_much_must_be_read() -> None:
    assert Selection(skip=5, num_requests=2).most_read == 7
    assert Selection(skip=5).most_read is None
    assert Selection(num_requests=2, sample=0.5).most_read is None
    assert Selection(num_requests=2, window_s=(0, 1)).most_read is None


def test_sessions_are_sampled_whole() -> None:
    session = [0, 1, -1, 0, 2, 1, -1, 2] * 50
    offset = np.repeat(np.arange(50), 8) * 3
    numbers = [n if n < 0 else n + o for n, o in zip(session, offset.tolist(), strict=True)]
    trace = trace_of([S * i for i in range(400)], numbers, cut=150)
    part = select(trace, Selection(sample=0.4, seed=3))
    sampled = [n for c in part.chunks if c.sessions for n in c.sessions.session.tolist()]
    counts = {n: sampled.count(n) for n in set(sampled) - {-1}}
    assert set(counts.values()) == {2}
    # 150 sessions and 100 requests on their own, each kept with probability 0.4: five deviations.
    assert 60 - 5 * 6 <= len(counts) <= 60 + 5 * 6
    assert 40 - 5 * 4.9 <= sampled.count(-1) <= 40 + 5 * 4.9
    again, other = (select(trace, Selection(sample=0.4, seed=s)) for s in (3, 4))
    assert column(again, "num_prompt_tokens") == column(part, "num_prompt_tokens")
    assert column(other, "num_prompt_tokens") != column(part, "num_prompt_tokens")
    assert select(trace, Selection(sample=1.0)).num_requests == 400


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        ({"skip": -1}, "skip is -1"),
        ({"window_s": (3.0, 3.0)}, "window is 3:3; it must be two times in seconds"),
        ({"window_s": (-1.0, 3.0)}, "window is -1:3"),
        ({"window_s": (float("nan"), 3.0)}, "window is nan:3"),
        ({"sample": 0.0}, r"sample is 0\.0"),
        ({"sample": 0.5, "seed": -1}, "seed is -1; it must be at least 0"),
        ({"sample": 1.5}, r"sample is 1\.5"),
        ({"num_requests": 0}, "num_requests is 0"),
        ({"skip": 9}, "none of the 3 requests of t is left"),
        ({"window_s": (5.0, float("inf"))}, "none of the 3 requests"),
    ],
)
def test_impossible_selections(selection: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        kept(trace_of([0, S, 2 * S]), **selection)


def test_time_scale_stretches_thinking_too() -> None:
    trace = trace_of([0, 3, 10], [0, 0, 0])
    scaled = trace.scale_time(1.5)
    assert column(scaled, "arrival_ns") == [0, 5, 15]  # 4.5 goes up
    assert [s for c in scaled.chunks if c.sessions for s in c.sessions.think_ns.tolist()] == [
        11
    ] * 3
    faster = trace.scale_rate(2.0)
    assert [s for c in faster.chunks if c.sessions for s in c.sessions.think_ns.tolist()] == [7] * 3
    with pytest.raises(
        UserError, match=r"time scale is 1e\+18; it stretches t beyond .* a smaller"
    ):
        trace_of([0, S, S]).scale_time(1e18)
    # Times may be short and think times long.
    with pytest.raises(UserError, match=r"time scale is 1e\+20; it stretches a think time of t"):
        trace_of([0, 0, 0], session=[3, 3, 3]).scale_time(1e20)
    with pytest.raises(UserError, match="time scale is -1"):
        trace.scale_time(-1)


def test_unknown_think_times_stay_unknown() -> None:
    trace = trace_of([0, 1, 2], [0, 0, 0])
    sessions = trace.chunks[0].sessions
    assert sessions is not None
    unknown = replace(sessions, think_ns=-np.ones(2, dtype=np.int64))
    assert unknown.scale_think(Fraction(3)).think_ns.tolist() == [-1, -1]


def test_a_batch_is_spread_until_the_next_stamp() -> None:
    trace = trace_of([0, 0, 0, 10, 16, 16])
    spread = spread_batches(trace)
    # A third of 10 ns each, the single one where it is, and the last batch over 6 ns as the one before.
    assert column(spread, "arrival_ns") == [0, 3, 6, 10, 16, 19]
    assert spread.notes[-1].startswith("requests that shared a stamp are spread")
    saturated = trace_of([4, 4, 4])
    assert spread_batches(saturated) is saturated


@given(
    stamps=st.lists(st.integers(0, 10**17), min_size=2, max_size=6, unique=True).map(sorted),
    nums=st.lists(st.integers(1, 9), min_size=6, max_size=6),
)
def test_spreading_keeps_order_and_stays_before_the_next_stamp(
    stamps: list[int], nums: list[int]
) -> None:
    arrivals = [stamp for stamp, num in zip(stamps, nums, strict=False) for _ in range(num)]
    spread = column(spread_batches(trace_of(arrivals)), "arrival_ns")
    assert spread == sorted(spread)
    for stamp, num, after in zip(stamps, nums, stamps[1:], strict=False):
        start = arrivals.index(stamp)
        exact = [stamp + Fraction(i * (after - stamp), num) for i in range(num)]
        assert all(0 <= e - s < 1 for e, s in zip(exact, spread[start:], strict=False))
