"""What `device_run.py` does, in order of worth, line by line, until the time is over."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import numpy
import torch
import triton

from .bench import bench_shapes, dry_shapes, run_bench, run_untimed, time_on_gpu
from .check import KERNELS, Backend, backends, run_all
from .device_twin import DRY, FULL, calibrate_on_device, validate_on_device
from .errors import UnavailableError

# By which share of the time each part has to end; what one leaves, the next has. The rest is timing's.
QUICK_CHECK_END = 0.2
CALIBRATION_END = 0.4
VALIDATION_END = 0.73
FULL_CHECK_END = 0.8
DRY_KERNELS = ("merge_partials", "copy_blocks")
DRY_READ_BYTES = 1 << 16

Write = Callable[[str, dict[str, Any]], None]
Failed = Callable[[str, Exception], None]
Done = set[tuple[str, str, str]]  # backend, kernel, configuration


def timed_run(file: TextIO, seconds: float, dry_run: bool) -> int:
    """Write lines to `file` until all is done or `seconds` are over; the last is always `end`.

    A check that raises is a failed `check` line and a timing that raises an `error` line, both with
    their configuration, and the next one runs. Return 1 if anything failed, or the quick check did
    not come to its end.
    """
    started = time.monotonic()

    def left_s(share: float) -> float:
        return started + share * seconds - time.monotonic()

    def left(share: float) -> Callable[[], bool]:
        return lambda: left_s(share) > 0

    def write(kind: str, content: dict[str, Any]) -> None:
        at_s = round(time.monotonic() - started, 3)
        file.write(json.dumps({"kind": kind, "at_s": at_s} | content) + "\n")
        file.flush()

    errors: list[str] = []

    def failed(configuration: str, error: Exception) -> None:
        errors.append(f"{configuration}: {type(error).__name__}: {' '.join(str(error).split())}")
        write("error", {"message": errors[-1]})

    all_passed = True
    has_checked = False
    if not dry_run and not torch.cuda.is_available():
        write("error", {"message": "torch finds no CUDA device; --dry-run goes without"})
    else:
        try:
            machine = _machine(dry_run)
            write("machine", machine)
            with backends("cpu" if dry_run else "cuda") as found:
                done: Done = set()

                def check(*, quick: bool) -> bool:
                    nonlocal all_passed
                    has_time = left(QUICK_CHECK_END if quick else FULL_CHECK_END)
                    try:
                        passed, is_complete = _check(write, has_time, found, done, quick, dry_run)
                    except (
                        Exception
                    ) as error:  # of the check itself: a kernel's own is a line of it
                        failed("the checks", error)
                        return False
                    all_passed &= passed
                    return is_complete

                has_checked = check(quick=True)
                all_passed &= _twin(write, failed, left_s, found[-1], machine)
                if not dry_run:
                    check(quick=False)
                _bench(write, failed, left(1.0), dry_run)
        except UnavailableError as error:
            write("error", {"message": str(error)})
        except Exception as error:
            failed("the run", error)
    all_passed &= has_checked and not errors
    write("end", {"all_passed": all_passed, "quick_check_complete": has_checked})
    return 0 if all_passed else 1


def _machine(dry_run: bool) -> dict[str, Any]:
    machine: dict[str, Any] = {
        "dry_run": dry_run,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "triton": triton.__version__,
        "numpy": numpy.__version__,
    }
    if not dry_run:
        properties = torch.cuda.get_device_properties(0)
        machine |= {
            "gpu": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "l2_bytes": properties.L2_cache_size,
        }
    return machine


def _check(
    write: Write,
    has_time: Callable[[], bool],
    found: list[Backend],
    done: Done,
    quick: bool,
    dry_run: bool,
) -> tuple[bool, bool]:
    """The quick check, or the rest behind it, as much as time allows: did all pass, was it complete?"""
    kernels = DRY_KERNELS if dry_run else KERNELS
    all_passed, num_checked, is_complete = True, 0, True
    for result in run_all(found, kernels, quick=quick, skip=done):
        done.add((result.backend, result.kernel, result.configuration))
        write("check", result.to_dict())
        all_passed &= result.passed
        num_checked += 1
        if not has_time():
            is_complete = False
            break
    write("checked", {"quick": quick, "num": num_checked, "complete": is_complete})
    return all_passed, is_complete and num_checked > 0


def _twin(
    write: Write,
    failed: Failed,
    left_s: Callable[[float], float],
    backend: Backend,
    machine: dict[str, Any],
) -> bool:
    """Calibrate, and validate with what that gives: did all pass?"""
    scale = DRY if machine["dry_run"] else FULL
    versions = {name: machine[name] for name in ("python", "torch", "triton", "numpy")}
    costs = {}
    try:
        costs = calibrate_on_device(write, left_s(CALIBRATION_END), backend, scale, versions)
    except Exception as error:
        failed("calibrate", error)

    def has_time() -> bool:
        return left_s(VALIDATION_END) > 0

    return validate_on_device(write, failed, has_time, backend, scale, costs)


def _bench(write: Write, failed: Failed, has_time: Callable[[], bool], dry_run: bool) -> None:
    """Timings, in order of interest, until the time is over."""
    if dry_run:
        rows = run_bench(dry_shapes(), "cpu", run_untimed, DRY_READ_BYTES, failed)
    else:
        rows = run_bench(bench_shapes(), "cuda", time_on_gpu, failed=failed)
    is_complete, num_rows = True, 0
    for row in rows:
        write("bench", row.to_dict())
        num_rows += 1
        if not has_time():
            is_complete = False
            break
    write("benched", {"num": num_rows, "complete": is_complete})
