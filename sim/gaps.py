"""Gaps between two tokens of a request (inter-token latency), every single one of them, in a histogram."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Seq

import numpy as np

# Bins are as wide as 1/128 of their lower edge at most, that is 0.8 %.
_PRECISION_BITS = 7
_MAX_PENDING = 4096
_EXACT = 1 << 53  # ns, over 100 days: floats hold smaller integers exactly


def _first_as_long(times_ns: Seq[int], least_ns: int, start: int) -> int:
    """The first time from `times_ns[start]` on that is so long behind the one before; the last one is."""
    num_times = len(times_ns)
    return bisect_left(
        range(num_times),
        least_ns,
        start,
        num_times - 1,
        key=lambda i: times_ns[i] - times_ns[i - 1],
    )


class GapHistogram:
    """Counts by bin, and the exact sum. Bin edges depend on the value alone, so the order of adding does not matter.

    Single gaps are counted by value, and binned in bulk.
    """

    def __init__(self) -> None:
        self._pending: dict[int, int] = {}  # by gap in ns
        self._counts: dict[int, int] = {}
        self._total_ns = 0

    def add(self, times_ns: Seq[int], num: int) -> None:
        """`num` requests get a token at each of the times; the first one is only where their first gap begins.

        No gap is shorter than the one before.
        """
        first_ns, last_ns, num_times = times_ns[0], times_ns[-1], len(times_ns)
        gap_ns, last_gap_ns = times_ns[1] - first_ns, last_ns - times_ns[-2]
        assert 0 <= gap_ns <= last_gap_ns, (
            f"INV-4: gaps of {gap_ns} ns, and later of {last_gap_ns} ns, between two tokens"
        )
        self._total_ns += (last_ns - first_ns) * num
        counts, at = self._counts, 1
        while True:
            shift = gap_ns.bit_length() - _PRECISION_BITS - 1
            if shift < 0:
                shift = 0
            index = (shift << _PRECISION_BITS) + (gap_ns >> shift)
            next_bin_ns = (gap_ns >> shift) + 1 << shift
            if last_gap_ns < next_bin_ns:  # in most cases the first gap's
                counts[index] = counts.get(index, 0) + num * (num_times - at)
                return
            behind = _first_as_long(times_ns, next_bin_ns, at + 1)
            counts[index] = counts.get(index, 0) + num * (behind - at)
            at = behind
            gap_ns = times_ns[at] - times_ns[at - 1]

    def add_one(self, gap_ns: int, num: int) -> None:
        """`num` requests get a token this long after the one before."""
        self._total_ns += gap_ns * num
        pending = self._pending
        pending[gap_ns] = pending.get(gap_ns, 0) + num
        if len(pending) >= _MAX_PENDING:
            self._bin()

    def _bin(self) -> None:
        if not self._pending:
            return
        gaps_ns = np.fromiter(self._pending.keys(), np.int64)
        nums = np.fromiter(self._pending.values(), np.int64)
        self._pending.clear()
        assert gaps_ns.min() >= 0, f"INV-4: a gap of {gaps_ns.min()} ns between two tokens"
        assert gaps_ns.max() < _EXACT, f"a gap of {gaps_ns.max()} ns between two tokens"
        # frexp gives the number of bits.
        shifts = np.maximum(
            0, np.frexp(gaps_ns.astype(np.float64))[1].astype(np.int64) - _PRECISION_BITS - 1
        )
        bins, where = np.unique(
            (shifts << _PRECISION_BITS) + (gaps_ns >> shifts), return_inverse=True
        )
        sums = np.zeros(len(bins), dtype=np.int64)
        np.add.at(sums, where, nums)
        for index, num in zip(bins.tolist(), sums.tolist(), strict=True):
            self._counts[index] = self._counts.get(index, 0) + num

    def mean_ms(self) -> float | None:
        """Exact mean, None without a gap."""
        self._bin()
        num = sum(self._counts.values())
        return self._total_ns / num / 1e6 if num else None

    def percentile_ms(self, percent: int) -> float | None:
        """The middle of the bin that holds the gap of this rank (nearest rank), None without a gap."""
        self._bin()
        rank = max(1, -(-sum(self._counts.values()) * percent // 100))
        for index in sorted(self._counts):
            rank -= self._counts[index]
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
