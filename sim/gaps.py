"""Gaps between two tokens of a request (inter-token latency), every single one of them, in a histogram."""

from __future__ import annotations

from collections.abc import Sequence as Seq

# Bins are as wide as 1/128 of their lower edge at most, that is 0.8 %.
_PRECISION_BITS = 7


class GapHistogram:
    """Counts by bin, and the exact sum. Bin edges depend on the value alone, so the order of adding does not matter."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._total_ns = 0
        # Steps that follow each other take about as long: the bin of the last ones is kept open, half-open [low, high).
        self._open_bin = self._open_count = self._low_ns = 0
        self._high_ns = 1

    @staticmethod
    def _bin(gap_ns: int) -> tuple[int, int, int]:
        """Index, lower edge and upper edge of the bin of a gap."""
        shift = max(0, gap_ns.bit_length() - _PRECISION_BITS - 1)
        low_ns = gap_ns >> shift << shift
        return (shift << _PRECISION_BITS) + (gap_ns >> shift), low_ns, low_ns + (1 << shift)

    def _open(self, gap_ns: int) -> None:
        """Make the bin of this gap the open one."""
        if self._open_count:
            self._counts[self._open_bin] = self._counts.get(self._open_bin, 0) + self._open_count
            self._open_count = 0
        self._open_bin, self._low_ns, self._high_ns = self._bin(gap_ns)

    def add(self, gap_ns: int, num: int) -> None:
        """`num` gaps of the same length."""
        if not self._low_ns <= gap_ns < self._high_ns:
            self._open(gap_ns)
        self._open_count += num
        self._total_ns += gap_ns * num

    def add_steps(self, times_ns: Seq[int], num: int) -> None:
        """`num` gaps in each of the steps that lie between the times; no step is shorter than the one before."""
        start_ns = times_ns[0]
        first_ns = times_ns[1] - start_ns
        if not self._low_ns <= first_ns < self._high_ns:
            self._open(first_ns)
        num_steps = len(times_ns) - 1
        if num_steps == 1 or times_ns[-1] - times_ns[-2] < self._high_ns:
            self._open_count += num * num_steps
            self._total_ns += (times_ns[-1] - start_ns) * num
            return
        for end_ns in times_ns[1:]:
            self.add(end_ns - start_ns, num)
            start_ns = end_ns

    def counts(self) -> dict[int, int]:
        """Gaps by bin."""
        self._open(self._low_ns)
        return self._counts

    def mean_ms(self) -> float | None:
        """Exact mean, None without a gap."""
        num = sum(self.counts().values())
        return self._total_ns / num / 1e6 if num else None

    def percentile_ms(self, percent: int) -> float | None:
        """The middle of the bin that holds the gap of this rank (nearest rank), None without a gap."""
        counts = self.counts()
        rank = max(1, -(-sum(counts.values()) * percent // 100))
        for index in sorted(counts):
            rank -= counts[index]
            if rank <= 0:
                return self._middle_ns(index) / 1e6
        return None

    @staticmethod
    def _middle_ns(index: int) -> float:
        if index < 2 << _PRECISION_BITS:
            return float(index)
        shift = (index >> _PRECISION_BITS) - 1
        low_ns = index - (shift << _PRECISION_BITS) << shift
        return low_ns + ((1 << shift) - 1) / 2
