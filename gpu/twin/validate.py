"""A policy's predictions against its execution, one by one."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isnan

from kvtwin.sim import Assembly

from ..check.backends import Backend
from .audited import AuditedSteps
from .content import ContentShape
from .driver import GivenClock
from .execution import Execution, execute
from .executor import DeviceExecutor, Observer
from .foresight import Foresight, num_same_decisions
from .outputs import OutputCheck, largest_difference
from .validation import PolicyValidation, Prediction

MAX_FINDINGS = 40
# Checks of the audit that compare parts with the recorder; all others are about contents.
_PARTS = "parts"


@dataclass(frozen=True)
class Depth:
    """How much is looked at: every slot in each `audit_steps`-th step, and the outputs of `num_rows`
    requests in every step, of one sequence in each `output_steps`-th, and of one whose slots were carried about.
    """

    audit_steps: int = 10
    output_steps: int = 4
    num_rows: int = 8

    def rows_of(self, num_requests: int) -> set[int]:
        """Requests spread over the trace."""
        num = min(self.num_rows, num_requests)
        return {place * num_requests // num for place in range(num)}


@dataclass
class Looks:
    """What looked at an execution."""

    shape: ContentShape
    depth: Depth
    audited: AuditedSteps | None = None  # None under a policy that keeps nothing
    outputs: OutputCheck | None = field(default=None)

    def observe(self, assembly: Assembly, executor: DeviceExecutor) -> Iterable[Observer]:
        """For `execute`."""
        rows, depth = self.depth.rows_of(assembly.trace.num_requests), self.depth
        assert assembly.log is not None
        self.outputs = OutputCheck(
            assembly.trace, executor, self.shape, assembly.log, rows, depth.output_steps
        )
        yield self.outputs
        if assembly.policy.keeps_kv:
            self.audited = AuditedSteps(assembly, executor, self.shape, depth.audit_steps)
            yield self.audited


def validate_decisions(
    foresight: Foresight, shape: ContentShape, backend: Backend, depth: Depth, *, paranoid: bool
) -> tuple[PolicyValidation, Execution, OutputCheck]:
    """Execute with steps that last as long as they did in the simulation, and compare everything but times.

    Decisions must be the same with all ids, slots must hold what they say, the recorder's parts must
    be those that are counted from contents, and outputs must be those of float64.
    """
    assembly, looks = foresight.assembly, Looks(shape, depth)
    execution = execute(
        assembly.trace,
        assembly.config,
        shape,
        backend,
        GivenClock(foresight.durations_ns),
        paranoid=paranoid,
        observe=looks.observe,
    )
    policy, outputs = assembly.config.policy, looks.outputs
    assert outputs is not None

    def zero(kind: str, name: str, measured: float, unit: str, note: str = "") -> Prediction:
        return Prediction(policy, kind, name, 0, measured, unit, 0, backend.name, note=note)

    predictions = [*_decisions(foresight, execution, backend.name)]
    counts: dict[str, int] = {}
    findings: list[str] = []
    if looks.audited is not None:
        audit = looks.audited.audit
        audit.finish()
        counts |= audit.counts
        findings += map(str, audit.findings.kept)
        num_parts = audit.findings.counts[_PARTS]
        predictions += [
            zero("contents", "findings", audit.findings.num_findings - num_parts, "slots"),
            zero("parts", "counts that differ", num_parts, "counts"),
        ]
    if assembly.policy.reuses_prefixes:
        hits = execution.executor.unwritten_hits
        num_missing = sum(len(hit.positions) for hit in hits)
        predictions.append(
            zero("contents", "found in the pool, never written", num_missing, "tokens")
        )
        findings += map(str, hits)
    predictions += [
        zero("outputs", "outputs with NaN", outputs.num_nan, "tokens"),
        _within_tolerance(
            policy, "largest error", outputs.num_compared, outputs.worst_share, backend.name
        ),
    ]
    findings += outputs.findings
    counts |= {
        "num_outputs": outputs.num_outputs,
        "num_outputs_compared": outputs.num_compared,
        **{f"num_outputs_behind_a_{name}": num for name, num in outputs.num_carried.items()},
        "num_findings": len(findings),
    }
    result = PolicyValidation(
        policy, backend.name, tuple(predictions), counts, tuple(findings[:MAX_FINDINGS])
    )
    return result, execution, outputs


def _decisions(foresight: Foresight, execution: Execution, backend: str) -> Iterable[Prediction]:
    """Given the same durations, everything is decided alike, ids and all."""
    expected, found = foresight.log, execution.assembly.log
    assert found is not None
    policy, num = foresight.assembly.config.policy, len(expected.steps)
    rows, executed_rows = foresight.assembly.recorder.rows, execution.assembly.recorder.rows
    num_rows = sum(one == two for one, two in zip(rows, executed_rows, strict=False))
    for kind, name, predicted, measured, unit in (
        ("decisions", "steps", len(foresight.durations_ns), len(execution.executor.times), "steps"),
        ("decisions", "decisions", num, len(found.steps), "decisions"),
        ("decisions", "first ones that are the same", num, num_same_decisions(expected, found), ""),
        ("decisions", "end of the last step", foresight.end_ns, execution.end_ns, "ns"),
        ("parts", "timeline rows that are the same", len(rows), num_rows, "rows"),
    ):
        yield Prediction(policy, kind, name, predicted, measured, unit or "decisions", 0, backend)


def decisions_of_measured(
    foresight: Foresight, execution: Execution, backend: str
) -> Iterable[Prediction]:
    """`foresight` was simulated with the durations that `execution` had at its device's own speed."""
    expected, found = foresight.log, execution.assembly.log
    assert found is not None
    yield Prediction(
        foresight.assembly.config.policy,
        "decisions",
        "the same, at the device's own speed",
        len(found.steps),
        num_same_decisions(expected, found) if len(expected.steps) == len(found.steps) else 0,
        "decisions",
        0,
        backend,
        note="simulated with the durations that were measured",
    )


def same_outputs(
    policy: str, backend: str, one: OutputCheck, other: OutputCheck, of: str
) -> Prediction:
    """Attention of the same tokens under another policy, `of`."""
    num, share = largest_difference(one, other)
    return _within_tolerance(policy, f"largest difference from {of}", num, share, backend)


def _within_tolerance(
    policy: str, name: str, num_compared: int, share: float, backend: str
) -> Prediction:
    """`share`: the largest difference as a share of its tolerance. What is NaN, or of nothing, was not measured."""
    note, measured = f"{num_compared:,} outputs compared", None
    if isnan(share):
        note += ", of which some are NaN"
    elif num_compared:
        measured = share
    return Prediction(policy, "outputs", name, 0, measured, "of tolerance", 1, backend, note=note)
