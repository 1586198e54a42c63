"""Step times on this CPU: fitted to a grid of steps, then compared with traces that no fit has seen.

    OPENBLAS_NUM_THREADS=1 .venv/bin/python benchmarks/cpu_calibration.py reports > reports/cpu-calibration.md

The argument is the folder for two coefficients files: `paged` is executed with blocks of 16, the other policies, whose
sequences hold runs of slots, with blocks of 1. 4 layers of 8 heads of 64, fp16, the torch operations in one thread;
three generated traces under three policies, each executed twice. Times are CPU time.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

from machine import machine_lines

from kvtwin.analysis.calibration import versions
from kvtwin.gpu.device_twin import BLOCK_SIZES, FULL, POLICIES, calibrate_blocks, config_of
from kvtwin.gpu.report import calibration_lines
from kvtwin.gpu.twin.backend import open_backend
from kvtwin.gpu.twin.clock import keep_freed_memory
from kvtwin.gpu.twin.driver import MeasuredClock, drive
from kvtwin.gpu.twin.foresight import foresee
from kvtwin.gpu.twin.validate_times import validate_times
from kvtwin.gpu.twin.validation import Prediction

COMMAND = "OPENBLAS_NUM_THREADS=1 .venv/bin/python benchmarks/cpu_calibration.py reports > reports/cpu-calibration.md"
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


def main(folder: Path) -> None:
    """Print the report, and write the coefficients files to `folder`."""
    keep_freed_memory()
    print("# Step times on a CPU\n")
    print("\n".join(f"- {line}" for line in machine_lines()))
    print(f"- `{COMMAND}`\n- **Not measured on a GPU.**")
    paths = {size: folder / f"cpu-calibration-blocks-of-{size}.json" for size in BLOCK_SIZES}
    with open_backend("cpu", "torch") as backend:
        for size, path in paths.items():
            cost, line = calibrate_blocks(float("inf"), backend, SCALE, size, versions())
            assert cost is not None
            cost.save(path)
            print(f"\n## Fit to blocks of {size}\n")
            print(f"{line['num_steps']} steps, {SCALE.num_repeats} times each.\n")
            print("\n".join(calibration_lines(line["cost"])))
        print(f"\n## Traces that the fits have not seen\n\n{TABLE}")
        shape, clock = SCALE.content_shape(), MeasuredClock()
        for trace in SCALE.traces():
            for policy in POLICIES:
                config = config_of(SCALE, policy, paths)
                foresight = foresee(
                    trace, config, lambda engine, executor: drive(engine, executor, clock)
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
