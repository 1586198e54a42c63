"""What happened to the pool over time: exact integrals, in rows that coarsen as a run grows."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add, sub

from .gaps import GapHistogram
from .ledger import FIELDS

MAX_ROWS = 400


@dataclass(frozen=True)
class Sample:
    """The pool at the last step of a row, between its plan and its commit."""

    num_waiting: int  # at the end of the step
    largest_free_run_slots: int
    free_slots: int
    pieces: tuple[
        tuple[int, int, int], ...
    ]  # (first slot, number of slots, request row), if snapshots are wanted


@dataclass(frozen=True)
class Row:
    """Half-open [start_ns, end_ns), a whole number of steps; `sums` are FIELDS over the row."""

    start_ns: int
    end_ns: int
    sums: tuple[int, ...]
    sample: Sample


class Recorder:
    """Cuts cumulative totals into rows, at most MAX_ROWS: when there are as many, neighbours are joined in pairs."""

    def __init__(self, pool_slots: int, row_ns: int, snapshots: bool) -> None:
        assert row_ns > 0, f"a row of {row_ns} ns"
        self._pool_slots = pool_slots
        self._row_ns = row_ns
        self._totals: tuple[int, ...] = (0,) * len(FIELDS)
        self.snapshots = snapshots
        self.row_end_ns = row_ns  # a row closes at the first step boundary at or after this
        self.rows: list[Row] = []
        self.loaded: tuple[int, ...] | None = None  # totals at the end of the loaded window
        self.gaps = GapHistogram()

    @property
    def whole(self) -> tuple[int, ...]:
        """Totals of the rows closed so far."""
        return self._totals

    def end_loaded_window(self, totals: tuple[int, ...]) -> None:
        """Nobody waits and nobody will come: what follows is the drain, unless a preempted sequence waits again."""
        self.loaded = totals

    def close_row(self, totals: tuple[int, ...], sample: Sample) -> None:
        """A row ends at a step boundary. INV-1: grants, counted one by one, and the free list make up the pool."""
        sums = tuple(map(sub, totals, self._totals))
        duration_ns, live, useful, asked, granted, free, external, cached = sums[:8]
        pool = self._pool_slots * duration_ns
        total = granted + free + cached
        assert total == pool, (
            f"INV-1: granted {granted} + free {free} + cached {cached} slot-ns are {total}, "
            f"the pool has {self._pool_slots} slots x {duration_ns} ns = {pool}"
        )
        assert 0 <= live <= useful <= asked <= granted, (
            f"INV-1: live {live}, below E {useful}, asked {asked}, granted {granted} slot-ns are not in order"
        )
        assert 0 <= external <= free, f"INV-1: external {external} of {free} free slot-ns"
        start_ns, end_ns = self._totals[0], totals[0]
        self._totals = totals
        self.rows.append(Row(start_ns, end_ns, sums, sample))
        if len(self.rows) == MAX_ROWS:
            self.rows = [_join(*self.rows[i : i + 2]) for i in range(0, MAX_ROWS, 2)]
            self._row_ns *= 2
        self.row_end_ns = end_ns + self._row_ns

    def finish(self, totals: tuple[int, ...], sample: Sample) -> None:
        """The run is over. A loaded window of no length (everybody was admitted at once) becomes the whole run."""
        if totals[0] > self._totals[0]:
            self.close_row(totals, sample)
        if not self.loaded or not self.loaded[0]:
            self.loaded = totals


def _join(first: Row, second: Row) -> Row:
    return Row(
        first.start_ns, second.end_ns, tuple(map(add, first.sums, second.sums)), second.sample
    )
