"""The checks and timings of `device_run.py`, line by line, until the time is over."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import numpy
import torch
import triton

from .bench import bench_shapes, dry_shapes, run_bench, run_untimed, time_on_gpu
from .check import KERNELS, backends, run_all
from .errors import UnavailableError

# Shares of the time: what is checked first matters most, and the rest is timing's.
QUICK_CHECK_SHARE = 0.45
FULL_CHECK_SHARE = 0.15
DRY_KERNELS = ("merge_partials", "copy_blocks")
DRY_READ_BYTES = 1 << 16


def timed_run(file: TextIO, seconds: float, dry_run: bool) -> int:
    """Write lines to `file` until all is done or `seconds` are over; return 1 if a check failed."""
    started = time.monotonic()

    def left(share: float) -> Callable[[], bool]:
        return lambda: time.monotonic() - started < share * seconds

    def write(kind: str, content: dict[str, Any]) -> None:
        at_s = round(time.monotonic() - started, 3)
        file.write(json.dumps({"kind": kind, "at_s": at_s} | content) + "\n")
        file.flush()

    if not dry_run and not torch.cuda.is_available():
        write("error", {"message": "torch finds no CUDA device; --dry-run goes without"})
        return 1
    write("machine", _machine(dry_run))
    try:
        all_passed = _check(write, left, dry_run)
    except UnavailableError as error:
        write("error", {"message": str(error)})
        return 1
    try:
        _bench(write, left(1.0), dry_run)
    except RuntimeError as error:  # out of memory, a fault on the device: what was timed stays
        write("error", {"message": " ".join(str(error).split())})
        all_passed = False
    write("end", {"all_passed": all_passed})
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
    write: Callable[[str, dict[str, Any]], None],
    left: Callable[[float], Callable[[], bool]],
    dry_run: bool,
) -> bool:
    """The quick check, then as much of the rest as time allows."""
    kernels = DRY_KERNELS if dry_run else KERNELS
    all_passed, done = True, set()
    with backends("cpu" if dry_run else "cuda") as found:
        for quick, share in ((True, QUICK_CHECK_SHARE), (False, FULL_CHECK_SHARE)):
            if dry_run and not quick:
                break
            limit = QUICK_CHECK_SHARE if quick else QUICK_CHECK_SHARE + share
            has_time, num_checked, is_complete = left(limit), 0, True
            for result in run_all(found, kernels, quick=quick, skip=done):
                done.add((result.backend, result.kernel, result.configuration))
                write("check", result.to_dict())
                all_passed &= result.passed
                num_checked += 1
                if not has_time():
                    is_complete = False
                    break
            write("checked", {"quick": quick, "num": num_checked, "complete": is_complete})
    return all_passed


def _bench(
    write: Callable[[str, dict[str, Any]], None], has_time: Callable[[], bool], dry_run: bool
) -> None:
    """Timings, in order of interest, until the time is over."""
    if dry_run:
        rows = run_bench(dry_shapes(), "cpu", run_untimed, DRY_READ_BYTES)
    else:
        rows = run_bench(bench_shapes(), "cuda", time_on_gpu)
    is_complete, num_rows = True, 0
    for row in rows:
        write("bench", row.to_dict())
        num_rows += 1
        if not has_time():
            is_complete = False
            break
    write("benched", {"num": num_rows, "complete": is_complete})
