"""What happened to the pool over time: exact integrals, in rows that coarsen as a run grows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .gaps import GapHistogram
from .policies.base import Allocator
from .sequence import Sequence

MAX_ROWS = 400
# Integrals are slots x ns, or sequences x ns; the others are counts.
FIELDS = (
    "duration_ns",
    "num_steps",
    "live",
    "useful",
    "asked",
    "granted",
    "free",
    "external",
    "running",
    "num_prefill_tokens",
    "num_decode_tokens",
    "num_preemptions",
)
_PREEMPTIONS = FIELDS.index("num_preemptions")


@dataclass(frozen=True)
class Sample:
    """The pool at the last step of a row, between its plan and its commit."""

    num_waiting: int  # at the end of the step
    largest_free_run_slots: int
    free_slots: int
    pieces: tuple[tuple[int, int, int], ...]  # (first slot, number of slots, request row), if snapshots are wanted


@dataclass
class Row:
    """Half-open [start_ns, end_ns), a whole number of steps; `sums` are those of FIELDS."""

    start_ns: int
    end_ns: int
    sums: list[int]
    sample: Sample


class Recorder:
    """Adds up spans of steps. At most MAX_ROWS rows are kept: when they are full, neighbours are joined in pairs."""

    def __init__(self, pool_slots: int, row_ns: int, snapshots: bool) -> None:
        assert row_ns > 0, f"a row of {row_ns} ns"
        self._pool_slots = pool_slots
        self._row_ns = row_ns
        self._snapshots = snapshots
        self._start_ns = 0
        self._sums = [0] * len(FIELDS)
        self.row_end_ns = row_ns  # a row closes at the first step boundary at or after this
        self.rows: list[Row] = []
        self.loaded = [0] * len(FIELDS)
        self.whole = [0] * len(FIELDS)
        self.loaded_end_ns: int | None = None
        self.gaps = GapHistogram()
        self.recomputed_tokens = 0

    def add(
        self,
        duration_ns: int,
        num_steps: int,
        live: int,
        useful: int,
        asked: int,
        granted: int,
        free: int,
        external: int,
        running: int,
        num_prefill_tokens: int,
        num_decode_tokens: int,
    ) -> None:
        """A span of steps. INV-1: what is granted, counted by grants, and what is free, by the free list, is the pool."""
        assert granted + free == self._pool_slots * duration_ns, (
            f"INV-1: granted {granted} + free {free} slot-ns are {granted + free}, "
            f"the pool has {self._pool_slots} slots x {duration_ns} ns = {self._pool_slots * duration_ns}"
        )
        assert 0 <= live <= useful <= asked <= granted, (
            f"INV-1: live {live}, below E {useful}, asked {asked}, granted {granted} slot-ns are not in order"
        )
        assert 0 <= external <= free, f"INV-1: external {external} of {free} free slot-ns"
        sums = self._sums
        sums[0] += duration_ns
        sums[1] += num_steps
        sums[2] += live
        sums[3] += useful
        sums[4] += asked
        sums[5] += granted
        sums[6] += free
        sums[7] += external
        sums[8] += running
        sums[9] += num_prefill_tokens
        sums[10] += num_decode_tokens

    def count_preemption(self, num_committed_tokens: int) -> None:
        """A running sequence lost this many committed tokens."""
        self._sums[_PREEMPTIONS] += 1
        self.recomputed_tokens += num_committed_tokens

    def count_recomputed(self, num_tokens: int) -> None:
        """Tokens computed again for want of a cache."""
        self.recomputed_tokens += num_tokens

    def idle(self, start_ns: int, end_ns: int, free_slots: int) -> None:
        """Nothing runs and nobody waits."""
        duration_ns = end_ns - start_ns
        self.add(duration_ns, 0, 0, 0, 0, 0, free_slots * duration_ns, 0, 0, 0, 0)

    def begin_drain(self, now_ns: int) -> None:
        """Every request has been admitted: what follows does not count for the loaded window."""
        if self.loaded_end_ns is None:
            self.loaded_end_ns = now_ns
            self.loaded = [whole + now for whole, now in zip(self.whole, self._sums, strict=True)]

    def sample(self, num_waiting: int, allocator: Allocator, holders: Iterable[Sequence]) -> Sample:
        """The pool as it is now."""
        pieces = ()
        if self._snapshots:
            pieces = tuple((first, num, seq.row) for seq in holders for first, num in allocator.runs(seq))
        return Sample(num_waiting, allocator.largest_free_run(), allocator.num_free_slots(), pieces)

    def close_row(self, end_ns: int, sample: Sample) -> None:
        """The row ends here, at a step boundary."""
        self.whole = [whole + now for whole, now in zip(self.whole, self._sums, strict=True)]
        self.rows.append(Row(self._start_ns, end_ns, self._sums, sample))
        self._sums = [0] * len(FIELDS)
        self._start_ns = end_ns
        if len(self.rows) == MAX_ROWS:
            self.rows = [_join(*self.rows[i : i + 2]) for i in range(0, MAX_ROWS, 2)]
            self._row_ns *= 2
        self.row_end_ns = end_ns + self._row_ns

    def finish(self, end_ns: int, sample: Sample) -> None:
        """The run is over. A window of no length (everybody was admitted at once) is replaced by the whole run."""
        if end_ns > self._start_ns:
            self.close_row(end_ns, sample)
        self.begin_drain(end_ns)
        if self.loaded[0] == 0:
            self.loaded = self.whole


def _join(first: Row, second: Row) -> Row:
    sums = [a + b for a, b in zip(first.sums, second.sums, strict=True)]
    return Row(first.start_ns, second.end_ns, sums, second.sample)
