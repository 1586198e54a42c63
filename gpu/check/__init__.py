"""What proves the kernels right: cases, a float64 reference, exact probes, and the verdicts."""

from .backends import Backend, backends
from .case import Case
from .judge import probe_cases, run_all, run_case, run_probe
from .matrix import KERNELS, matrix
from .result import Result

__all__ = [
    "Backend",
    "backends",
    "Case",
    "KERNELS",
    "matrix",
    "probe_cases",
    "run_all",
    "run_case",
    "run_probe",
    "Result",
]
