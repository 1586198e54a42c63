"""What proves the kernels right: cases, a float64 reference, exact probes, and the verdicts."""

from .case import Case
from .matrix import KERNELS, matrix
from .result import Result
from .run import run_case

__all__ = ["Case", "KERNELS", "matrix", "Result", "run_case"]
