"""A closed loop by hand, where a call waits for several, and what is checked behind a run."""

from array import array
from pathlib import Path

import pytest
from session_runs import loop, sessions_of, steps

from kvtwin.sim.closed_loop import check_arrivals
from kvtwin.sim.requests import RequestTable
from kvtwin.traces import waits


def test_who_waits_for_two_comes_after_what_either_asks(tmp_path: Path) -> None:
    """Call 3 waits for calls 1 and 2, and no think time is known. It was recorded 9 steps after call 1 came, which it
    keeps: call 2 comes 6 steps earlier than recorded, so it ends last, at step 4, but asks for no more than that.
    """
    trace = sessions_of(
        (0, 1, 1, 0, 0, -1, -1, -1),
        (0, 1, 2, 0, 1, -1, -1, 3),
        (7, 1, 3, 0, 2, 0, 0, 3),
        (9, 1, 1, 0, 3, -1, -1, -1),
    )
    found = loop(trace, tmp_path)
    assert steps(found["arrival_ns"]) == [0, 0, 1, 9]
    assert steps(found["finished_ns"]) == [1, 2, 4, 10]


def test_a_call_behind_two_that_are_turned_away_counts_once(tmp_path: Path) -> None:
    trace = sessions_of(
        (0, 70, 1, 0, 0, -1, -1, 2), (1, 70, 1, 0, 1, -1, -1, 2), (2, 1, 1, 0, 2, -1, -1, -1)
    )
    found = loop(trace, tmp_path)
    assert found["summary"]["num_rejected"] == 2
    assert found["summary"]["num_calls_after_rejected"] == 1


@pytest.mark.parametrize(
    ("came", "finished", "is_early"),
    [
        ([0, 1, 3], [2, 4, 5], True),
        ([0, 1, 3], [4, 2, 5], True),
        ([0, 1, 3], [2, 3, 5], False),
        ([0, 1, 3], [3, -1, 5], False),
        ([0, 4, 3], [3, -1, 5], True),
    ],
)
def test_who_came_before_one_it_waits_for_is_found(
    came: list[int], finished: list[int], is_early: bool
) -> None:
    """Call 2 waits for both others; one that is turned away (-1) ends when it comes."""
    trace = sessions_of(
        (0, 1, 2, 0, 0, -1, -1, 2), (1, 1, 2, 0, 1, -1, -1, 2), (2, 1, 1, 0, 2, -1, -1, -1)
    )
    requests = RequestTable(came, [1] * 3, [2, 2, 1], [2, 2, 1], [9] * 3, waits=waits(trace))
    requests.finished_ns[:] = array("q", finished)
    if is_early:
        with pytest.raises(AssertionError, match="request 2 came at 3 ns, before one"):
            check_arrivals(requests)
    else:
        check_arrivals(requests)
