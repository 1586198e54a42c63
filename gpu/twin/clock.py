"""How long a step takes on a device."""

import ctypes
import time
from collections.abc import Callable

import torch


def timed_ns(run: Callable[[], object], device: str) -> int:
    """Nanoseconds that `run` takes on `device`, at least 1.

    `cuda`: from an idle device until it is idle again, launches included: the pure time of kernels
    that are replayed from a graph would leave out what an engine's step pays. `cpu`: CPU time of
    this process, because wall time on a machine that others use says more about them; it equals the
    wall time of a free core as long as torch has one thread (`torch.set_num_threads(1)`).
    """
    if device == "cpu":
        started_ns = time.process_time_ns()
        run()
        return max(1, time.process_time_ns() - started_ns)
    torch.cuda.synchronize()
    started_ns = time.perf_counter_ns()
    run()
    torch.cuda.synchronize()
    return max(1, time.perf_counter_ns() - started_ns)


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, where the C library is glibc.

    Otherwise large buffers go back to the system, or do not, depending on what was freed before,
    and page faults make equal steps last up to three times as long.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for parameter in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
        mallopt(parameter, (1 << 31) - 1)
