"""What a case came to."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """`error`: largest distance from the reference; for copies, elements that differ.

    `num_bytes`: read and written, as the traffic model has it; None where it was not counted.
    `problem`: what else is wrong, in words.
    """

    backend: str
    kernel: str
    configuration: str
    error: float
    tolerance: float
    num_bytes: int | None = None
    problem: str = ""

    @property
    def passed(self) -> bool:
        # Not `error > tolerance`: NaN must fail.
        return self.error <= self.tolerance and not self.problem

    @property
    def verdict(self) -> str:
        """One word, or what is wrong."""
        if self.passed:
            return "pass"
        return f"FAIL: {self.problem or 'error above tolerance'}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON: NaN and infinities as text."""
        finite = self.error == self.error and abs(self.error) != float("inf")
        return {
            "backend": self.backend,
            "kernel": self.kernel,
            "configuration": self.configuration,
            "error": self.error if finite else str(self.error),
            "tolerance": self.tolerance,
            "bytes": self.num_bytes,
            "verdict": "pass" if self.passed else "fail",
            "problem": self.problem,
        }

    @classmethod
    def from_dict(cls, line: dict[str, Any]) -> "Result":
        """The result that `to_dict` wrote."""
        return cls(
            line["backend"],
            line["kernel"],
            line["configuration"],
            float(line["error"]),
            line["tolerance"],
            line["bytes"],
            line["problem"],
        )
