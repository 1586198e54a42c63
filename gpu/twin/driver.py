"""The loop around an engine and a device: as `kvtwin.sim.drive`, with a clock instead of simpy."""

import time
from collections.abc import Sequence

from kvtwin.sim.engine_contract import EngineContract
from kvtwin.sim.executor import Executor
from kvtwin.sim.progress import Progress
from kvtwin.sim.queue import NO_ARRIVAL

from .executor import Clock


def drive(engine: EngineContract, executor: Executor, clock: Clock) -> int:
    """Run until every request has ended. Returns the time of the last event, in ns after the first arrival."""
    now_ns, progress = 0, Progress(engine.requests)
    while True:
        plan = engine.plan(now_ns)
        if plan is not None:
            ends_ns = executor.execute(plan)
            engine.commit(plan, ends_ns)
            progress.count(len(ends_ns))
            now_ns = ends_ns[-1]
            continue
        if engine.queue.next_arrival_ns == NO_ARRIVAL:
            return now_ns
        start_ns, now_ns = now_ns, clock.wait_until(engine.queue.next_arrival_ns)
        engine.idle(start_ns, now_ns)


class MeasuredClock:
    """Time goes on by what steps were measured to take; nobody waits for arrivals."""

    def end_ns(self, step: int, start_ns: int, measured_ns: int) -> int:
        """See `Clock`."""
        return start_ns + max(1, measured_ns)

    def wait_until(self, arrival_ns: int) -> int:
        """See `Clock`."""
        return arrival_ns


class GivenClock(MeasuredClock):
    """Step number i lasts `durations_ns[i]`, whatever was measured."""

    def __init__(self, durations_ns: Sequence[int]) -> None:
        self._durations_ns = durations_ns

    def end_ns(self, step: int, start_ns: int, measured_ns: int) -> int:
        """See `Clock`. A step that nobody has foreseen lasts as long as the last one that was."""
        return start_ns + self._durations_ns[min(step, len(self._durations_ns) - 1)]


class RealClock:
    """Requests arrive in real time, counted from when this is made, and everything in between takes time."""

    def __init__(self) -> None:
        self._started_ns = time.perf_counter_ns()

    def end_ns(self, step: int, start_ns: int, measured_ns: int) -> int:
        """See `Clock`."""
        return max(start_ns + 1, time.perf_counter_ns() - self._started_ns)

    def wait_until(self, arrival_ns: int) -> int:
        """See `Clock`."""
        left_ns = arrival_ns - (time.perf_counter_ns() - self._started_ns)
        if left_ns > 0:
            time.sleep(left_ns / 1e9)
        return max(arrival_ns, time.perf_counter_ns() - self._started_ns)
