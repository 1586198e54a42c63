"""Who waits for whom, by hand."""

import numpy as np
import pytest

from kvtwin.traces import Sessions, Trace, TraceChunk, waits


def trace_of(*calls: tuple[int, int, int, int, int], cut: int = 0) -> Trace:
    """(session, call, after_call, think_ns, join_call) of each request; two chunks if `cut`."""
    chunks = []
    for part in (calls[:cut], calls[cut:]):
        if part:
            ones = np.ones(len(part), dtype=np.int64)
            chunks.append(TraceChunk(ones, ones, ones, -ones, sessions=Sessions(*np.array(part).T)))
    return Trace("t", "any", tuple(chunks))


def lists(trace: Trace) -> list[tuple[list[int], int]]:
    found = waits(trace)
    pairs = zip(found.offsets, found.offsets[1:], found.think_ns.tolist(), strict=False)
    return [(found.rows[a:b].tolist(), think) for a, b, think in pairs]


@pytest.mark.parametrize("cut", [0, 2, 5])
def test_fork_and_join(cut: int) -> None:
    trace = trace_of(
        (0, 0, -1, -1, -1),  # row 0: the first call
        (1, 0, -1, -1, -1),  # row 1: another session with the same numbers
        (0, 1, 0, 10, 4),  # row 2: a subagent's only call, waited for by call 4
        (0, 2, 0, 20, -1),  # row 3: another subagent's first call
        (-1, 0, -1, -1, -1),  # row 4: no session
        (0, 3, 2, 30, 4),  # row 5: its second one, waited for by call 4
        (0, 4, 0, 40, -1),  # row 6: the first agent goes on
        (1, 1, 0, -1, -1),  # row 7: it is not known how long after
        cut=cut,
    )
    assert lists(trace) == [
        ([], -1),
        ([], -1),
        ([0], 10),
        ([0], 20),
        ([], -1),
        ([3], 30),
        ([0, 2, 5], 40),
        ([1], -1),
    ]


def test_nobody_waits_for_what_was_cut_off() -> None:
    trace = trace_of((0, 3, 2, 50, 9), (0, 4, 3, 60, -1))
    assert lists(trace) == [([], -1), ([0], 60)]
    assert lists(trace.head(1)) == [([], -1)]


def test_without_sessions_nobody_waits() -> None:
    one = np.ones(2, dtype=np.int64)
    found = waits(Trace("t", "any", (TraceChunk(one, one, one, one),)))
    assert (found.offsets.tolist(), found.rows.tolist()) == ([0, 0, 0], [])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ((0, 3, 3, 0, -1), "waits for itself or a later one"),
        ((0, 3, 2, 0, 3), "joins itself or an earlier one"),
        ((-2, 0, -1, -1, -1), "a session of -2"),
        ((0, 0, -1, -2, -1), "a think_ns of -2"),
    ],
)
def test_bugs_are_assertions(call: tuple[int, int, int, int, int], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        trace_of(call)


def test_a_number_is_used_once_in_a_session() -> None:
    with pytest.raises(AssertionError, match="same number"):
        waits(trace_of((0, 1, -1, -1, -1), (0, 1, -1, -1, -1)))
