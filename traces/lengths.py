"""Token counts: how often each occurs, and what follows from that."""

from dataclasses import dataclass

import numpy as np

from .arrays import Int64


@dataclass(frozen=True)
class LengthSummary:
    """Tokens per request; percentiles are numpy's (linear interpolation)."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int


class LengthCounter:
    """Counts values, so that exact percentiles of many need little memory."""

    def __init__(self) -> None:
        self._counts = np.zeros(0, dtype=np.int64)  # by value

    def add(self, values: Int64) -> None:
        """More values, from 0."""
        more = np.bincount(values)
        if len(more) > len(self._counts):
            more[: len(self._counts)] += self._counts
            self._counts = more
        else:
            self._counts[: len(more)] += more

    @property
    def num_values(self) -> int:
        return int(self._counts.sum())

    def summary(self) -> LengthSummary:
        """Of all values; there is at least one."""
        num_values = self.num_values
        total = int((self._counts * np.arange(len(self._counts))).sum())
        p50, p90, p99 = (self._percentile(q, num_values) for q in (50, 90, 99))
        return LengthSummary(total / num_values, p50, p90, p99, len(self._counts) - 1)

    def _percentile(self, q: int, num_values: int) -> float:
        # Between the values at the whole places around q % of the way from first to last.
        whole, hundredths = divmod(q * (num_values - 1), 100)
        ends = np.cumsum(self._counts)
        low, high = np.searchsorted(ends, [whole, min(whole + 1, num_values - 1)], side="right")
        return float(low + (high - low) * hundredths / 100)
