"""Think times add up along a session: a closed loop that cannot but outlast the clock is refused."""

from pathlib import Path

import numpy as np
import pytest
from random_cases import config_of

from kvtwin.sim import closed_loop_waits, simulate
from kvtwin.traces import Sessions, Trace, TraceChunk, UserError

HALF = 5 * 10**17  # half of the limit, ns


def chain(arrival_ns: list[int], think_ns: list[int], after: list[int]) -> Trace:
    """Calls of one session, of a token each."""
    n = len(think_ns)
    ones = np.ones(n, dtype=np.int64)
    columns = (ones * 0, np.arange(n), np.array(after), np.array(think_ns), -ones)
    chunk = TraceChunk(np.array(arrival_ns), ones, ones, -ones, sessions=Sessions(*columns))
    return Trace("long", "any", (chunk,))


def test_a_chain_within_the_limit_is_run(tmp_path: Path) -> None:
    trace = chain([0, 0, 0], [-1, HALF, HALF], [-1, 0, 1])
    config = config_of("paged", closed_loop=True, cost="constant:1000000")
    assert simulate(trace, config, tmp_path)["end_ns"] == 2 * HALF + 3_000_000


@pytest.mark.parametrize(
    ("arrival_ns", "think_ns", "after", "row"),
    [
        ([0, 0, 0], [-1, HALF, HALF + 1], [-1, 0, 1], 2),
        (
            [0, HALF, HALF],
            [-1, -1, HALF + 1],
            [-1, 0, 1],
            2,
        ),  # behind one whose think time is unknown
        ([0, 7, 7], [-1, -1, 2 * HALF - 6], [-1, -1, 1], 2),  # behind one that waits for nobody
    ],
)
def test_a_chain_beyond_the_limit_is_refused(
    arrival_ns: list[int], think_ns: list[int], after: list[int], row: int
) -> None:
    words = f"think times up to request {row} add up to 1,000,000,000 s; the limit is"
    with pytest.raises(UserError, match=words):
        closed_loop_waits(chain(arrival_ns, think_ns, after))


def test_a_fork_does_not_add_up() -> None:
    assert len(closed_loop_waits(chain([0] * 4, [-1, HALF, HALF, HALF], [-1, 0, 0, 0])).rows) == 3
