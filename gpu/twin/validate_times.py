"""A policy's predicted times against an execution that runs at the speed of its device."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvtwin.sim import Policy, RunConfig

from ..check.backends import Backend
from .content import ContentShape
from .driver import GivenClock, MeasuredClock
from .execution import Execution, execute
from .executor import StepTime
from .foresight import Foresight
from .step_times import StepTimes, time_predictions
from .validation import Prediction


@dataclass(frozen=True)
class TimedExecution:
    """`execution`: at the device's speed. `steps`: of it, with those of its repetition."""

    execution: Execution
    steps: StepTimes
    predictions: tuple[Prediction, ...]


def validate_times(
    foresight: Foresight, shape: ContentShape, backend: Backend, *, repeat: bool = True
) -> TimedExecution:
    """Execute twice: as fast as the device is, and the same steps again, which shows its noise.

    Nothing looks at these executions, so that nothing else is in their times. `repeat`: False
    leaves the second one out.
    """
    assembly = foresight.assembly
    trace, config, policy = assembly.trace, assembly.config, assembly.config.policy
    execution = execute(trace, config, shape, backend, MeasuredClock())
    measured = execution.executor.times
    again_ns = None
    if repeat:
        again = execute(trace, config, shape, backend, GivenClock(_durations_ns(measured)))
        repeated = again.executor.times
        assert [step.totals for step in repeated] == [step.totals for step in measured], (
            f"the {len(repeated)} steps of {policy} in the repetition are not the {len(measured)} before"
        )
        again_ns = _durations_ns(repeated)
    steps = steps_of(foresight, execution, again_ns)
    predictions = time_predictions(
        policy,
        backend.name,
        assembly.cost,
        assembly.requests,
        execution.assembly.requests,
        steps,
        shape,
        executed_block_slots(assembly.policy, config),
    )
    return TimedExecution(execution, steps, predictions)


def steps_of(
    foresight: Foresight, execution: Execution, repeat_ns: Sequence[int] | None = None
) -> StepTimes:
    """The steps of an execution, with what the cost model of `foresight` says of them."""
    steps = execution.executor.times
    return StepTimes.of(
        foresight.assembly.cost,
        [step.start_ns for step in steps],
        [step.totals for step in steps],
        _durations_ns(steps),
        repeat_ns,
    )


def _durations_ns(steps: Sequence[StepTime]) -> list[int]:
    """As `MeasuredClock` counts them."""
    return [max(1, step.measured_ns) for step in steps]


def executed_block_slots(policy: Policy, config: RunConfig) -> int:
    """Token slots of a block of the tables that `policy` is executed with; `no-cache` has scratch ones."""
    return policy.block_slots if policy.keeps_kv else config.block_size
