"""What the kernels cost on a GPU, against the device's own read bandwidth and torch's attention."""

from .run import BenchRow, run_bench
from .shapes import BenchShape, bench_shapes, dry_shapes
from .timing import run_untimed, time_on_gpu

__all__ = [
    "BenchRow",
    "BenchShape",
    "bench_shapes",
    "dry_shapes",
    "run_bench",
    "run_untimed",
    "time_on_gpu",
]
