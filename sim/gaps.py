"""Gaps between two tokens of a request (inter-token latency), every single one of them, in a histogram."""

from __future__ import annotations

from collections.abc import Sequence as Seq

# Bins are as wide as 1/128 of their lower edge at most, that is 0.8 %.
_PRECISION_BITS = 7


class GapHistogram:
    """Counts by bin, and the exact sum. Bin edges depend on the value alone, so the order of adding does not matter."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.total_ns = 0
        self.num = 0

    @staticmethod
    def _bin(gap_ns: int) -> int:
        shift = gap_ns.bit_length() - _PRECISION_BITS - 1
        return gap_ns if shift <= 0 else (shift << _PRECISION_BITS) + (gap_ns >> shift)

    @staticmethod
    def _middle_ns(index: int) -> float:
        if index < 2 << _PRECISION_BITS:
            return float(index)
        shift = (index >> _PRECISION_BITS) - 1
        lower = index - (shift << _PRECISION_BITS) << shift
        return lower + ((1 << shift) - 1) / 2

    def add(self, gap_ns: int, num: int) -> None:
        """`num` gaps of the same length."""
        index = self._bin(gap_ns)
        self.counts[index] = self.counts.get(index, 0) + num
        self.total_ns += gap_ns * num
        self.num += num

    def add_steps(self, start_ns: int, ends_ns: Seq[int], num: int) -> None:
        """`num` gaps in each of consecutive steps that end at `ends_ns`; no step is shorter than the one before."""
        num_steps = len(ends_ns)
        if num_steps > 1:
            first, last = self._bin(ends_ns[0] - start_ns), self._bin(ends_ns[-1] - ends_ns[-2])
            if first != last:
                for end_ns in ends_ns:
                    self.add(end_ns - start_ns, num)
                    start_ns = end_ns
                return
        else:
            first = self._bin(ends_ns[0] - start_ns)
        self.counts[first] = self.counts.get(first, 0) + num * num_steps
        self.total_ns += (ends_ns[-1] - start_ns) * num
        self.num += num * num_steps

    def mean_ms(self) -> float | None:
        """Exact mean, None without a gap."""
        return self.total_ns / self.num / 1e6 if self.num else None

    def percentile_ms(self, percent: int) -> float | None:
        """The middle of the bin that holds the gap of this rank (nearest rank), None without a gap."""
        rank = -(-self.num * percent // 100)
        for index in sorted(self.counts):
            rank -= self.counts[index]
            if rank <= 0 and self.num:
                return self._middle_ns(index) / 1e6
        return None
