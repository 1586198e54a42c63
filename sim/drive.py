"""The simulated clock: the only place that knows simpy."""

from __future__ import annotations

from collections.abc import Generator

import simpy

from .engine_contract import EngineContract
from .executor import Executor
from .progress import Progress
from .queue import NO_ARRIVAL


def drive(engine: EngineContract, executor: Executor) -> int:
    """Run until every request has ended. Returns the time of the last event, in ns after the first arrival."""
    env = simpy.Environment(initial_time=0)
    env.process(_serve(env, engine, executor))
    env.run()
    return int(env.now)


def _serve(
    env: simpy.Environment, engine: EngineContract, executor: Executor
) -> Generator[simpy.Event, None, None]:
    """Steps, one behind the other. The environment's clock is set only when another event is due before a step ends."""
    now_ns = int(env.now)
    next_event_ns = env.peek()  # nobody can schedule anything while this process does not wait
    progress = Progress(engine.requests)
    while True:
        plan = engine.plan(now_ns)
        if plan is None:
            if engine.queue.next_arrival_ns == NO_ARRIVAL:
                break
            end_ns = engine.queue.next_arrival_ns
        else:
            ends_ns = executor.execute(plan)
            end_ns = ends_ns[-1]
        if next_event_ns <= end_ns:
            yield env.timeout(end_ns - env.now)
            next_event_ns = env.peek()
        if plan is None:
            engine.idle(now_ns, end_ns)
        else:
            engine.commit(plan, ends_ns)
            progress.count(len(ends_ns))
        now_ns = end_ns
    yield env.timeout(now_ns - env.now)
