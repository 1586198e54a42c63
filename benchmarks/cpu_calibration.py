"""Step times on this CPU: fitted to a grid of steps, then compared with traces that the fit has not seen.

    OPENBLAS_NUM_THREADS=1 .venv/bin/python benchmarks/cpu_calibration.py reports/cpu-calibration.json \
        > reports/cpu-calibration.md

The first argument is the coefficients file to write. 4 layers of 8 heads of 64, fp16, blocks of 16, the torch
operations in one thread; three generated traces under three policies, each executed twice. Times are CPU time.
"""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from machine import machine_lines

from kvtwin.analysis.calibration import versions
from kvtwin.gpu.device_twin import FULL, POLICIES
from kvtwin.gpu.devices import device_name
from kvtwin.gpu.report import calibration_lines
from kvtwin.gpu.twin.backend import open_backend
from kvtwin.gpu.twin.calibrate import calibrated_cost, measure_steps
from kvtwin.gpu.twin.clock import keep_freed_memory
from kvtwin.gpu.twin.driver import MeasuredClock, drive
from kvtwin.gpu.twin.foresight import foresee
from kvtwin.gpu.twin.grid import calibration_grid
from kvtwin.gpu.twin.validate_times import validate_times
from kvtwin.gpu.twin.validation import Prediction

COMMAND = (
    "OPENBLAS_NUM_THREADS=1 .venv/bin/python benchmarks/cpu_calibration.py reports/cpu-calibration.json "
    "> reports/cpu-calibration.md"
)
SCALE = replace(
    FULL,
    config=replace(
        FULL.config,
        model="opt-125m",
        num_gpu_blocks_override=160,
        max_model_len=512,
        max_num_seqs=32,
        max_num_batched_tokens=1024,
        max_tokens=64,
    ),
    shape={"num_layers": 4, "num_heads": 8, "head_dim": 64},
    limits={
        "max_num_seqs": 32,
        "max_context": 512,
        "max_num_batched_tokens": 1024,
        "max_slots": 16384,
    },
)
TABLE = (
    "| trace | policy | steps | step time error: mean, p95 | noise: mean, p95 | makespan | mean TTFT | mean TPOT |\n"
    "|---|---|---:|---:|---:|---:|---:|---:|"
)


def main(path: Path) -> None:
    """Print the report, and write the coefficients to `path`."""
    keep_freed_memory()
    print("# Step times on a CPU\n")
    print("\n".join(f"- {line}" for line in machine_lines()))
    print(f"- `{COMMAND}`\n- **Not measured on a GPU.**\n\n## Fit\n")
    with open_backend("cpu", "torch") as backend:
        steps, shape = calibration_grid(**SCALE.limits), SCALE.content_shape()
        samples = measure_steps(steps, shape, backend, SCALE.config.block_size)
        assert samples is not None
        cost, fit = calibrated_cost(
            samples,
            shape,
            backend,
            model=SCALE.config.model,
            block_size=SCALE.config.block_size,
            source=COMMAND,
            device_name=device_name("cpu"),
            date=time.strftime("%Y-%m-%d"),
            versions=versions(),
        )
        cost.save(path)
        print(f"{fit.num_points} steps, {samples.durations_ns.shape[1]} times each.\n")
        print("\n".join(calibration_lines(cost.to_dict())))
        print(f"\n## Traces that the fit has not seen\n\n{TABLE}")
        for trace in SCALE.traces():
            for policy in POLICIES:
                config = replace(SCALE.config, policy=policy, cost=str(path))
                clock = MeasuredClock()
                foresight = foresee(
                    trace,
                    config,
                    lambda engine, executor, clock=clock: drive(engine, executor, clock),
                )
                timed = validate_times(foresight, shape, backend)
                by_name = {made.name: made for made in timed.predictions}
                cells = [trace.name, policy, f"{len(timed.steps.measured_ns):,}"]
                errors = [by_name[f"{name} step time error"] for name in ("mean", "p95")]
                cells.append(", ".join(f"{made.measured:.1f} %" for made in errors))
                cells.append(", ".join(f"{made.noise:.1f} %" for made in errors))
                cells += [_cell(by_name[n]) for n in ("makespan", "mean TTFT", "mean TPOT")]
                print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\nPredicted -> measured (noise). {NOTE}")
    print(f"\nLoad average at the end: {os.getloadavg()[0]:.1f}.")


NOTE = (
    "Noise: of the same steps executed again. Judged by the rule of `kvtwin validate`, 20 % of what was predicted "
    "plus the noise, times in italics are missed. Near capacity, waiting times magnify an error of steps: "
    "TTFT over time."
)


def _cell(made: Prediction) -> str:
    assert made.measured is not None
    text = f"{made.predicted:,.1f} -> {made.measured:,.1f} ms ({made.noise:,.1f})"
    return text if made.passed else f"*{text}*"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
