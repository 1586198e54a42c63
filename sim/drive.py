"""The simulated clock: the only place that knows simpy."""

from __future__ import annotations

from collections.abc import Generator

import simpy

from .engine import Engine
from .executor import Executor


def drive(engine: Engine, executor: Executor) -> int:
    """Run until every request has ended. Returns the time of the last event, in ns after the first arrival."""
    env = simpy.Environment(initial_time=0)
    env.process(_serve(env, engine, executor))
    env.run()
    return int(env.now)


def _serve(env: simpy.Environment, engine: Engine, executor: Executor) -> Generator[simpy.Event, None, None]:
    while True:
        now_ns = int(env.now)
        plan = engine.plan(now_ns)
        if plan is None:
            next_arrival_ns = engine.queue.next_arrival_ns
            if next_arrival_ns is None:
                return
            yield env.timeout(next_arrival_ns - now_ns)
            engine.idle(now_ns, next_arrival_ns)
        else:
            ends_ns = executor.execute(plan)
            yield env.timeout(ends_ns[-1] - now_ns)
            engine.commit(plan, ends_ns)
