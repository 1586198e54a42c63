"""Gaps between two tokens of a request (inter-token latency), every single one of them, in a histogram."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import chain

import numpy as np

# Bins are as wide as 1/128 of their lower edge at most, that is 0.8 %.
_PRECISION_BITS = 7
_MAX_PENDING = 4096
_LONG = 8  # more times than these are worth a look whether all their gaps are in one bin
_EXACT = 1 << 53  # ns, over 100 days: floats hold smaller integers exactly


class GapHistogram:
    """Counts by bin, and the exact sum. Bin edges depend on the value alone, so the order of adding does not matter.

    What is added is kept as it comes and binned in bulk, unless it is plain where it belongs.
    """

    def __init__(self) -> None:
        self._pending: list[tuple[Seq[int], int]] = []
        self._counts: dict[int, int] = {}
        self._total_ns = 0

    def add(self, times_ns: Seq[int], num: int) -> None:
        """`num` requests get a token at each of the times; the first one is only where their first gap begins.

        No gap is shorter than the one before.
        """
        if len(times_ns) > _LONG:
            index = self._index(times_ns[1] - times_ns[0])
            if index == self._index(times_ns[-1] - times_ns[-2]):
                self._counts[index] = self._counts.get(index, 0) + num * (len(times_ns) - 1)
                self._total_ns += (times_ns[-1] - times_ns[0]) * num
                return
        self._pending.append((times_ns, num))
        if len(self._pending) == _MAX_PENDING:
            self._bin()

    @staticmethod
    def _index(gap_ns: int) -> int:
        shift = max(0, gap_ns.bit_length() - _PRECISION_BITS - 1)
        return (shift << _PRECISION_BITS) + (gap_ns >> shift)

    def _bin(self) -> None:
        if not self._pending:
            return
        self._total_ns += sum((times[-1] - times[0]) * num for times, num in self._pending)
        lengths = np.array([len(times) for times, _ in self._pending])
        times_ns = np.fromiter(
            chain.from_iterable(times for times, _ in self._pending), np.int64, lengths.sum()
        )
        gaps_ns = np.diff(times_ns, prepend=times_ns[:1])
        is_gap = np.ones(len(gaps_ns), dtype=bool)
        is_gap[np.cumsum(lengths) - lengths] = (
            False  # the first time of each row begins a gap and ends none
        )
        gaps_ns = gaps_ns[is_gap]
        nums = np.repeat([num for _, num in self._pending], lengths - 1)
        self._pending.clear()
        assert gaps_ns.min(initial=0) >= 0, f"INV-4: a gap of {gaps_ns.min()} ns between two tokens"
        assert gaps_ns.max(initial=0) < _EXACT, f"a gap of {gaps_ns.max()} ns between two tokens"
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
