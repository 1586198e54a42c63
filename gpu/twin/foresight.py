"""What is predicted of an execution: the same trace under the same policy, simulated, step by step."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvtwin.sim import Assembly, RunConfig, assemble
from kvtwin.sim.assembly import under_policy
from kvtwin.sim.decisions import Decisions
from kvtwin.sim.engine_contract import EngineContract
from kvtwin.sim.executor import CostExecutor, Executor
from kvtwin.sim.plan import Plan
from kvtwin.traces import Trace

Drive = Callable[[EngineContract, Executor], int]  # as kvtwin.sim.drive.drive


class GivenDurations:
    """An executor whose step number i lasts `durations_ns[i]`; steps behind them last 1 ns."""

    def __init__(self, durations_ns: Sequence[int]) -> None:
        self._durations_ns = durations_ns
        self._num_steps = 0

    def execute(self, plan: Plan) -> list[int]:
        """See `Executor`."""
        at, self._num_steps = self._num_steps, self._num_steps + 1
        known = at < len(self._durations_ns)
        return [plan.ready_ns + (self._durations_ns[at] if known else 1)]


class _Recording:
    """Keeps the duration of every step of another executor."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.durations_ns: list[int] = []

    def execute(self, plan: Plan) -> Sequence[int]:
        """See `Executor`."""
        ends_ns = self._executor.execute(plan)
        start_ns = plan.ready_ns
        for end_ns in ends_ns:
            self.durations_ns.append(end_ns - start_ns)
            start_ns = end_ns
        return ends_ns


@dataclass(frozen=True)
class Foresight:
    """A finished simulation with its decisions, and how long each step lasted once it could begin."""

    assembly: Assembly
    durations_ns: list[int]
    end_ns: int
    summary: dict[str, Any]

    @property
    def log(self) -> Decisions:
        """Every decision."""
        assert self.assembly.log is not None
        return self.assembly.log

    def to_dict(self) -> dict[str, Any]:
        """What prediction.json says of a policy."""
        return {
            "num_steps": len(self.durations_ns),
            "durations_sha256": _sha256(self.durations_ns),
            "num_decisions": len(self.log.steps),
            "decisions_sha256": decisions_sha256(self.log),
            "end_ns": self.end_ns,
            "summary": self.summary,
        }


def foresee(
    trace: Trace,
    config: RunConfig,
    drive: Drive,
    durations_ns: Sequence[int] | None = None,
    *,
    paranoid: bool = False,
) -> Foresight:
    """Simulate `trace`, with steps that last what the cost model says, or `durations_ns`."""
    with under_policy(config.policy):
        assembly = assemble(trace, config, snapshots=True, decisions=True, paranoid=paranoid)
        inner: Executor = CostExecutor(assembly.cost)
        if durations_ns is not None:
            inner = GivenDurations(durations_ns)
        executor = _Recording(inner)
        end_ns = drive(assembly.engine, executor)
        return Foresight(assembly, executor.durations_ns, end_ns, assembly.finish(end_ns))


def columns_of(log: Decisions) -> tuple[Sequence[int] | Sequence[str], ...]:
    """The columns of a decision log: step, action, row, branch, first, num, source."""
    numbers = (log.rows, log.branches, log.firsts, log.nums, log.sources)
    return (log.steps, log.actions, *numbers)


def decisions_sha256(log: Decisions) -> str:
    """Of all columns of all decisions."""
    return _sha256(list(zip(*columns_of(log), strict=True)))


def num_same_decisions(log: Decisions, other: Decisions) -> int:
    """Leading decisions that are the same in both, ids and steps included."""
    pairs = zip(
        zip(*columns_of(log), strict=True), zip(*columns_of(other), strict=True), strict=False
    )
    for number, (one, two) in enumerate(pairs):
        if one != two:
            return number
    return min(len(log.steps), len(other.steps))


def _sha256(lines: Sequence[object]) -> str:
    return hashlib.sha256("\n".join(map(repr, lines)).encode()).hexdigest()
