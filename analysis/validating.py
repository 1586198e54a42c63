"""`kvtwin validate`, step by step: predict, write and hash that, execute, compare."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtwin.gpu.devices import device_name
from kvtwin.gpu.twin.execution import content_shape
from kvtwin.gpu.twin.foresight import Foresight, foresee
from kvtwin.gpu.twin.outputs import OutputCheck
from kvtwin.gpu.twin.step_times import StepTimes
from kvtwin.gpu.twin.validate import (
    Depth,
    decisions_of_measured,
    same_outputs,
    validate_decisions,
)
from kvtwin.gpu.twin.validate_times import steps_of, validate_times
from kvtwin.gpu.twin.validation import PolicyValidation, Validation
from kvtwin.sim import RunConfig, load_cost
from kvtwin.sim.drive import drive
from kvtwin.sim.run_directory import write_json, write_run
from kvtwin.traces import Trace, UserError

from .calibration import typed_command, versions
from .device_flags import DeviceFlags
from .execution import shape_facts, write_execution
from .layout import META_JSON, PREDICTION_JSON, VALIDATION_JSON, run_dir_name
from .notices import first_rejection

if TYPE_CHECKING:
    from kvtwin.gpu.check.backends import Backend

PREDICTED, EXECUTED = "predicted", "executed"
SCOPE = (
    "executed: K and V are stored and attended to, in every layer, with queries, K and V that "
    "follow from the tokens; no projections, no feed-forward, no sampling"
)
_TO_MEND = "use a larger pool or --max-model-len, or shorter requests"
NO_GPU = "not measured on a GPU"
INTERPRETED = "Triton's interpreter ran the kernels: how long it takes says nothing, so no times"


def validate_policies(
    trace: Trace,
    config: RunConfig,
    names: Sequence[str],
    flags: DeviceFlags,
    backend: "Backend",
    depth: Depth,
    out: Path,
    *,
    notes: Sequence[str],
    paranoid: bool,
    each: Callable[[PolicyValidation], None] = lambda _: None,
) -> Validation:
    """Everything of validation.json, `notes` among it, which is written to `out` with all run directories.

    `each` gets the part of a policy as soon as it is complete.

    Policies that reject everything are not executed, and named. Raises UserError where a policy cannot run under
    `config`, or be executed, or all reject everything.
    """
    sizes = (flags.layers, flags.heads, flags.kv_heads, flags.head_dim)
    # The same for all, or refused.
    (shape,) = {content_shape(dataclasses.replace(config, policy=name), *sizes) for name in names}
    foresights: dict[str, Foresight] = {}
    idle: list[Mapping[str, Any]] = []
    for name in names:
        foresight = foresee(
            trace, dataclasses.replace(config, policy=name), drive, paranoid=paranoid
        )
        if foresight.summary["num_finished"]:
            _write_prediction(out / PREDICTED / run_dir_name(name), foresight)
            foresights[name] = foresight
        else:
            idle.append(foresight.summary)
    if not foresights:
        raise UserError(f"{_all_rejected(idle[0])}; {_TO_MEND}")
    # From here on nothing that was predicted can change without showing.
    predicted = {name: foresight.to_dict() for name, foresight in foresights.items()}
    write_json(out / PREDICTION_JSON, {"trace": trace.name, "policies": predicted})
    sha256 = hashlib.sha256((out / PREDICTION_JSON).read_bytes()).hexdigest()
    parts: list[PolicyValidation] = []
    first: tuple[str, OutputCheck] | None = None
    for name, foresight in foresights.items():
        part, execution, outputs = validate_decisions(
            foresight, shape, backend, depth, paranoid=paranoid
        )
        more = []
        if first is not None:
            more.append(same_outputs(name, backend.name, outputs, first[1], first[0]))
        first = first or (name, outputs)
        if backend.name == "triton-interpret":
            steps: StepTimes = steps_of(foresight, execution)
        else:
            timed = validate_times(foresight, shape, backend)
            execution, steps = timed.execution, timed.steps
            again = foresee(trace, foresight.assembly.config, drive, steps.measured_ns.tolist())
            more += [*decisions_of_measured(again, execution, backend.name), *timed.predictions]
        write_execution(out / EXECUTED / run_dir_name(name), execution, steps, backend)
        parts.append(
            dataclasses.replace(
                part,
                predictions=(*part.predictions, *more),
                predicted_dir=f"{PREDICTED}/{run_dir_name(name)}",
                executed_dir=f"{EXECUTED}/{run_dir_name(name)}",
            )
        )
        each(parts[-1])
    cost = load_cost(config)
    said = [
        SCOPE,
        *trace.notes,
        *_windows(shape.windows),
        *map(_all_rejected, idle),
        *_rejected(foresights.values()),
        *cost.notes,
        *notes,
    ]
    if backend.device == "cpu":
        said.append(NO_GPU)
    if backend.name == "triton-interpret":
        said.append(INTERPRETED)
    validation = Validation(
        command=typed_command(),
        device=device_name(backend.device),
        versions=versions(),
        shape=shape_facts(shape, config.model, config.block_size),
        trace={"name": trace.name, "num_requests": trace.num_requests},
        cost={"name": cost.name, "calibrated": cost.calibrated},
        prediction_sha256=sha256,
        policies=tuple(parts),
        not_executed=tuple(summary["policy"] for summary in idle),
        notes=tuple(said),
    )
    validation.save(out / VALIDATION_JSON)
    return validation


def _windows(windows: Sequence[int]) -> list[str]:
    """One sentence of what the executed layers attend to, or none."""
    if not windows:
        return []
    counts = [
        f"{num} attend to {f'the last {window:,} tokens' if window else 'everything'}"
        for window, num in sorted(Counter(windows).items())
    ]
    return [
        "executed layers are those of vLLM's groups in turn, the same ones under every policy: "
        f"of {len(windows)}, {', '.join(counts)}"
    ]


def _all_rejected(summary: Mapping[str, Any]) -> str:
    return (
        f"under {summary['policy']} all {summary['num_requests']:,} requests are rejected, the first because of "
        f"{first_rejection(summary)}; so there is nothing to execute"
    )


def _write_prediction(out: Path, foresight: Foresight) -> None:
    write_run(out, foresight.assembly, foresight.summary)
    write_json(out / META_JSON, versions())


def _rejected(foresights: Iterable[Foresight]) -> list[str]:
    """One sentence of how many requests each policy rejected, or none."""
    counts = [
        f"{summary['policy']} {summary['num_rejected']:,} of {summary['num_requests']:,}"
        for summary in (foresight.summary for foresight in foresights)
        if summary["num_rejected"]
    ]
    return [f"requests rejected at arrival, so not executed: {', '.join(counts)}"] if counts else []
