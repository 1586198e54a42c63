"""What an audit found wrong, a line each."""

from collections import Counter
from dataclasses import dataclass, field

MAX_KEPT = 200


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it must be. `check` names the rule; `what` has the numbers."""

    step: int
    check: str
    what: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.check}: {self.what}: expected {self.expected}, found {self.found}"


@dataclass
class Findings:
    """The first of them, and the number of each kind."""

    kept: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, step: int, check: str, what: str, expected: object, found: object) -> None:
        """Count it, and keep it if it is one of the first."""
        self.counts[check] += 1
        if not self.is_full:
            self.kept.append(Finding(step, check, what, str(expected), str(found)))

    @property
    def is_full(self) -> bool:
        """Further ones are only counted."""
        return len(self.kept) >= MAX_KEPT

    @property
    def num_findings(self) -> int:
        """All of them, kept or not."""
        return self.counts.total()
