"""When a run that gets nowhere is ended, and that a slow one is not."""

import pytest
from random_cases import trace_of

from kvtwin.sim import PolicySettings, progress
from kvtwin.sim.policies.paged import Paged
from kvtwin.sim.progress import Progress
from kvtwin.sim.requests import RequestTable

LOOK_EVERY = 16


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LOOK_EVERY", LOOK_EVERY)


def table_of(*lengths: tuple[int, int]) -> RequestTable:
    policy = Paged(PolicySettings(num_slots=64, max_model_len=32, block_size=4))
    return RequestTable.from_trace(trace_of([(0, *pair) for pair in lengths]), policy, 32, None)


def steps_until_it_ends(requests: RequestTable, at_once: int) -> int:
    """Steps after which nobody is believed to end any more, `at_once` counted at a time."""
    watched, counts = Progress(requests), list[int]()

    def go_on() -> None:
        while len(counts) < 10_000:
            counts.append(at_once)
            watched.count(at_once)

    with pytest.raises(AssertionError, match="INV-5: no request has ended in"):
        go_on()
    return sum(counts)


def test_ten_times_the_longest_request_is_waited_for() -> None:
    """A prompt of 32 is turned away, so 10 x (8 + 7) = 150, and the first look behind that is at 160."""
    requests = table_of((8, 7), (1, 2), (32, 1))
    assert requests.accepted == [0, 1]
    assert steps_until_it_ends(requests, 1) == 160
    # A look comes as soon as 16 steps have gone by since the one before: 33, 66, 99, 132, 165.
    assert steps_until_it_ends(requests, 33) == 165


def test_each_end_begins_a_new_count() -> None:
    requests = table_of(*[(4, 1)] * 20)  # 50 steps
    watched = Progress(requests)
    for row in range(20):
        watched.count(48)
        requests.finished_ns[row] = 0  # steps may be so short that they take no time
        watched.count(LOOK_EVERY)
    watched.count(48)
    with pytest.raises(AssertionError, match="in 64 steps, 20 of 20 did before; the longest has 5"):
        watched.count(LOOK_EVERY)
