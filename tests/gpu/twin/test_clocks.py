"""The clocks of an execution: measured, given and real time."""

from typing import Any

import pytest
from twin_cases import SHAPE, config_of, make_trace

from kvtwin.gpu.twin import driver
from kvtwin.gpu.twin.backend import open_backend
from kvtwin.gpu.twin.driver import GivenClock, MeasuredClock, RealClock
from kvtwin.gpu.twin.execution import execute
from kvtwin.sim.progress import Progress


class FakeTime:
    """A clock that goes on by 1 us each time somebody looks, and when somebody sleeps."""

    def __init__(self) -> None:
        self.now_ns = 10**15
        self.slept_s: list[float] = []

    def perf_counter_ns(self) -> int:
        self.now_ns += 1000
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_ns += round(seconds * 1e9)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    time = FakeTime()
    monkeypatch.setattr(driver, "time", time)
    return time


def test_real_time_counts_what_lies_between_steps(fake: FakeTime) -> None:
    clock = RealClock()
    fake.now_ns += 5_000_000
    assert clock.end_ns(0, 2_000, measured_ns=77) == 5_001_000
    assert clock.wait_until(9_000_000) >= 9_000_000
    (slept_s,) = fake.slept_s
    assert slept_s == pytest.approx(9e-3 - 5.002e-3)
    assert clock.wait_until(9_000_000) > 9_000_000, "nobody turns time back"
    assert len(fake.slept_s) == 1


def test_real_time_never_stands_still(fake: FakeTime) -> None:
    clock = RealClock()
    assert clock.end_ns(0, 10**9, measured_ns=5) == 10**9 + 1


def test_a_run_in_real_time(fake: FakeTime) -> None:
    with open_backend("cpu", "torch") as backend:
        clock = RealClock()
        ran = execute(make_trace(0, num=5), config_of("paged"), SHAPE, backend, clock)
    requests = ran.assembly.requests
    assert ran.summary["num_finished"] == 5
    assert fake.slept_s, "arrivals are waited for"
    for row, arrival_ns in enumerate(requests.arrival_ns):
        assert requests.first_token_ns[row] > arrival_ns
    assert ran.end_ns == max(requests.finished_ns)


def test_each_step_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a run is given up too early, or too late."""
    counted = []

    class Counting(Progress):
        def count(self, num_steps: int) -> None:
            counted.append(num_steps)

    monkeypatch.setattr(driver, "Progress", Counting)
    with open_backend("cpu", "torch") as backend:
        ran = execute(make_trace(0, num=5), config_of("paged"), SHAPE, backend, MeasuredClock())
    assert sum(counted) == len(ran.executor.times)


def test_real_time_waits_for_transfers(fake: FakeTime) -> None:
    """A step that needs blocks which are on their way begins when they are there."""
    with open_backend("cpu", "torch") as backend:
        clock, config = RealClock(), config_of("vllm-v0, slow link")
        ran = execute(make_trace(0, span_ns=1), config, SHAPE, backend, clock)
    assert ran.summary["swapping"]["waited_ns"] > 0
    assert len(fake.slept_s) > 1
    assert ran.end_ns <= fake.now_ns - 10**15, "the run is not ahead of time"


@pytest.mark.parametrize(
    ("clock", "measured_ns", "end_ns"),
    [
        (MeasuredClock(), 40, 140),
        (MeasuredClock(), 0, 101),
        (GivenClock([7, 9]), 40, 109),
    ],
)
def test_virtual_time(clock: Any, measured_ns: int, end_ns: int) -> None:
    assert clock.end_ns(1, 100, measured_ns) == end_ns
    assert clock.wait_until(10**12) == 10**12
