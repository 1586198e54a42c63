"""What an execution leaves in its run directory."""

import dataclasses
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtwin.sim import CostModel, CostTerm, RunConfig, load_cost
from kvtwin.sim.cost import TOTALS
from kvtwin.sim.run_directory import write_json, write_run, write_steps
from kvtwin.traces import Trace

from .calibration import versions
from .device_flags import DeviceFlags, opened_backend
from .layout import META_JSON, STEPS

if TYPE_CHECKING:
    from kvtwin.gpu.check.backends import Backend
    from kvtwin.gpu.twin.content import ContentShape
    from kvtwin.gpu.twin.execution import Execution
    from kvtwin.gpu.twin.step_times import StepTimes


def execute_run(
    trace: Trace,
    config: RunConfig,
    flags: DeviceFlags,
    out: Path,
    *,
    real_time: bool,
    paranoid: bool,
) -> dict[str, Any]:
    """Execute without comparing, write the run directory, decisions and snapshots included; return the summary.

    Raises UserError for what the user can mend.
    """
    with opened_backend(flags) as backend:
        from kvtwin.gpu.twin.driver import MeasuredClock, RealClock
        from kvtwin.gpu.twin.execution import content_shape, execute
        from kvtwin.gpu.twin.step_times import StepTimes

        shape = content_shape(config, flags.layers, flags.heads, flags.kv_heads, flags.head_dim)
        clock = RealClock() if real_time else MeasuredClock()
        execution = execute(trace, config, shape, backend, clock, paranoid=paranoid)
        times, cost = execution.executor.times, execution.assembly.cost
        columns = ([step.start_ns for step in times], [step.totals for step in times])
        steps = StepTimes.of(cost, *columns, [max(1, step.measured_ns) for step in times])
        return write_execution(out, execution, steps, backend)


def write_execution(
    out: Path, execution: "Execution", steps: "StepTimes", backend: "Backend"
) -> dict[str, Any]:
    """Write the files of a run whose steps were measured, and steps.parquet; return the summary.

    In the place of a cost model run.json says what the steps were measured with.
    """
    hits = execution.executor.unwritten_hits
    summary = execution.summary | {
        "calibrated": True,
        "executed_with": backend.name,
        "num_unwritten_hit_tokens": sum(len(hit.positions) for hit in hits),
    }
    none = CostTerm("none", 0, (0,) * len(TOTALS))
    note = f"executed: steps were measured with {backend.name} on {backend.device}"
    measured = CostModel(f"measured with {backend.name}", True, (none,), (note,))
    write_run(out, dataclasses.replace(execution.assembly, cost=measured), summary)
    write_steps(out / STEPS, steps.columns())
    write_json(out / META_JSON, {**versions(), "host": platform.node()})
    return summary


def executed_facts(
    facts: dict[str, Any], config: RunConfig, summary: Mapping[str, Any]
) -> dict[str, Any]:
    """Facts of a run whose steps were measured: the cost model had no part in it."""
    unused = load_cost(config).notes
    notes = [note for note in facts["notes"] if note not in unused]
    if num_tokens := summary["num_unwritten_hit_tokens"]:
        notes.append(
            f"{num_tokens:,} tokens that the policy found in the pool had never been written; "
            "they were computed when they were needed"
        )
    cost = f"measured ({summary['executed_with']})"
    return facts | {"config": facts["config"] | {"cost": cost}, "notes": notes}


def shape_facts(shape: "ContentShape", model: str, block_size: int) -> Mapping[str, Any]:
    """What was executed of a model, as validation.json has it."""
    return {
        "model": model,
        "num_layers": shape.num_layers,
        "num_heads": shape.num_heads,
        "num_kv_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "dtype": str(shape.dtype).removeprefix("torch."),
        "block_size": block_size,
    }
