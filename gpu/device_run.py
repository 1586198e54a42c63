"""Check, calibrate, validate and time on a GPU machine, within a time limit, into one JSONL file.

    timeout 480 python3 gpu/device_run.py OUT.jsonl [--seconds 450] [--dry-run]

In order of worth: the kernels' quick check, 90 s of calibration, 150 s of validation (simulated traces
executed, and compared), the rest of the check, and the kernels' timings.

It needs torch, triton and numpy, and no installation: it finds the package around it. Every line is
written at once, so a run that is cut off leaves what it had; what raises is a line, too.
`--dry-run` goes the same way on a CPU with small shapes: checks in Triton's interpreter, the rest with
the torch operations, whose step times are those of a CPU.
`python3 -m kvtwin.gpu.device_report OUT.jsonl` makes a report of it.
"""

import argparse
import math
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path

DEFAULT_SECONDS = 450.0
NEEDED = ("torch", "triton", "numpy")


def main(arguments: list[str] | None = None) -> int:
    """Run, and return the exit code: 1 if anything failed or too little was checked.

    What cannot begin ends with exit code 2, and leaves no file.
    """
    parser = argparse.ArgumentParser(description="Check, calibrate, validate and time on a GPU.")
    parser.add_argument("out", type=Path, metavar="OUT.jsonl")
    parser.add_argument("--seconds", type=float, default=DEFAULT_SECONDS)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args(arguments)
    if not 0.0 <= options.seconds < math.inf:
        parser.error(f"--seconds {options.seconds}: must be a number of 0 or more")
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
    with tempfile.TemporaryDirectory() as links:
        # The packages are folders of generic names; this is what installing them amounts to.
        (Path(links) / "kvtwin").symlink_to(Path(__file__).resolve().parents[1])
        sys.path.insert(0, links)
        try:
            run = import_module("kvtwin.gpu.timed_run").timed_run
        except ModuleNotFoundError as error:
            if error.name not in NEEDED:
                raise
            parser.error(f"{error.name} is not installed; {', '.join(NEEDED)} are needed")
        try:
            file = options.out.open("x", encoding="utf-8")
        except FileExistsError:
            parser.error(f"{options.out} exists; name a new file, so that no results are lost")
        except OSError as error:
            parser.error(f"{options.out}: {error.strerror}")
        with file:
            return int(run(file, options.seconds, options.dry_run))


if __name__ == "__main__":
    sys.exit(main())
