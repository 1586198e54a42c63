"""A closed loop: a call of a session comes its think or tool time after the calls it waits for have ended here.

A call that waits for nobody comes at its recorded arrival. One whose think time the trace does not say comes as long
after the call it waits for came as was recorded, and not before that has ended. A call that is turned away ends when it
comes: its client hears so at once, and goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np

from kvtwin.traces import Trace, UserError, Waits, waits
from kvtwin.traces.sessions import UNKNOWN_THINK_NS
from kvtwin.traces.trace import MAX_SPAN_NS

from .queue import NO_ARRIVAL, Waiting, WaitingQueue
from .requests import UNKNOWN, RequestTable


def closed_loop_waits(trace: Trace) -> Waits:
    """Who waits for whom. Raises UserError if nobody does, so that a closed loop would be an open one."""
    found = waits(trace)
    if not len(found.rows):
        raise UserError(
            f"--closed-loop needs a trace that says which call waits for which, and in {trace.name} ({trace.format}) "
            "no call waits for another; leave it out, or take a format with sessions"
        )
    _check_span(trace, found)
    return found


def _check_span(trace: Trace, found: Waits) -> None:
    """Raise UserError if calls cannot but come later than a clock may go: think times add up along a session."""
    earliest_ns: list[int] = [ns for chunk in trace.chunks for ns in chunk.arrival_ns.tolist()]
    offsets, awaited, think_ns = (c.tolist() for c in (found.offsets, found.rows, found.think_ns))
    for row in np.flatnonzero(found.think_ns != UNKNOWN_THINK_NS).tolist():
        before = awaited[offsets[row] : offsets[row + 1]]
        earliest_ns[row] = think_ns[row] + max(earliest_ns[other] for other in before)
        if earliest_ns[row] > MAX_SPAN_NS:
            raise UserError(
                f"--closed-loop: in {trace.name}, think times up to request {row} add up to "
                f"{earliest_ns[row] // 10**9:,} s; the limit is {MAX_SPAN_NS // 10**9:,} s; use a smaller --time-scale"
            )


def loop_counts(waits: Waits) -> dict[str, int]:
    """Calls that wait for others, and those of them whose think time the trace does not say."""
    is_waiting = np.diff(waits.offsets) > 0
    is_unknown = waits.think_ns == UNKNOWN_THINK_NS
    return {
        "num_waiting_calls": int(is_waiting.sum()),
        "num_unknown_think_times": int((is_waiting & is_unknown).sum()),
    }


def num_calls_after_rejected(requests: RequestTable) -> int:
    """Calls that waited for at least one that was turned away."""
    if requests.waits is None:
        return 0
    offsets, awaited = requests.waits.offsets, requests.waits.rows
    is_rejected = np.isin(awaited, [rejection.row for rejection in requests.rejections])
    waiters = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return len(np.unique(waiters[is_rejected]))


def check_arrivals(requests: RequestTable) -> None:
    """After a run in a closed loop: nobody came before those they wait for had ended, whatever queue the engine has."""
    if requests.waits is None:
        return
    offsets = requests.waits.offsets
    arrival_ns, finished_ns = np.array(requests.arrival_ns), np.array(requests.finished_ns)
    end_ns = np.where(finished_ns == UNKNOWN, arrival_ns, finished_ns)
    rows = np.flatnonzero(np.diff(offsets))
    last_end_ns = np.maximum.reduceat(end_ns[requests.waits.rows], offsets[rows])
    early = rows[arrival_ns[rows] < last_end_ns]
    assert not len(early), (
        f"request {early[0]} came at {arrival_ns[early[0]]} ns, before one that it waits for had ended"
    )


def queue_of(
    requests: RequestTable, make: Callable[[RequestTable, int], Waiting]
) -> WaitingQueue[Waiting]:
    """The queue of an open loop, or of a closed one where somebody waits for somebody."""
    if requests.waits is None:
        return WaitingQueue(requests, make)
    return ClosedLoopQueue(requests, make, requests.waits)


class ClosedLoopQueue(WaitingQueue[Waiting]):
    """Arrivals that come about during the run, in order of (arrival, row)."""

    def __init__(
        self, requests: RequestTable, make: Callable[[RequestTable, int], Waiting], waits: Waits
    ) -> None:
        super().__init__(requests, make)
        num = len(requests.arrival_ns)
        self._is_accepted = bytearray(num)
        for row in requests.accepted:
            self._is_accepted[row] = True
        self._think_ns: list[int] = waits.think_ns.tolist()
        num_awaited = np.diff(waits.offsets)
        self._num_awaited: list[int] = num_awaited.tolist()  # that have not ended
        self._earliest_ns = [0] * num  # arrival, by those awaited calls that have ended
        self._waiters: dict[int, list[int]] = {}
        waiters = np.repeat(np.arange(num), num_awaited)
        for awaited, waiter in zip(waits.rows.tolist(), waiters.tolist(), strict=True):
            self._waiters.setdefault(awaited, []).append(waiter)
        self.awaited = self._waiters.keys()
        self._coming: list[tuple[int, int]] = []  # heap of (arrival, row), accepted ones
        self._arrived: list[tuple[int, int]] = []  # heap of the same
        first_rows = np.flatnonzero(num_awaited == 0).tolist()
        self._come([(requests.arrival_ns[row], row) for row in first_rows])

    def advance(self, now_ns: int) -> int:
        while self.next_arrival_ns <= now_ns:
            heappush(self._arrived, heappop(self._coming))
            self.next_arrival_ns = self._coming[0][0] if self._coming else NO_ARRIVAL
        return len(self._arrived) + len(self._preempted)

    def pop(self, now_ns: int) -> None:
        if not self._preempted:
            _, row = heappop(self._arrived)
            assert self._head_row == row, f"{row} came before {self._head_row}, which is popped"
        super().pop(now_ns)

    def finish(self, row: int, end_ns: int) -> None:
        """Those that wait for this request alone, or for it last, will come."""
        if row in self._waiters:
            self._come(self._released(row, end_ns))

    def _first_row(self) -> int | None:
        return self._arrived[0][1] if self._arrived else None

    def _released(self, row: int, end_ns: int) -> list[tuple[int, int]]:
        """(arrival, row) of those whose last awaited call is `row`, which has ended."""
        released, table = [], self._requests
        for waiter in self._waiters.get(row, ()):
            if self._think_ns[waiter] == UNKNOWN_THINK_NS:
                gap_ns = table.trace_arrival_ns[waiter] - table.trace_arrival_ns[row]
                arrival_ns = max(end_ns, table.arrival_ns[row] + gap_ns)
            else:
                arrival_ns = end_ns + self._think_ns[waiter]
            if arrival_ns > self._earliest_ns[waiter]:
                self._earliest_ns[waiter] = arrival_ns
            self._num_awaited[waiter] -= 1
            if not self._num_awaited[waiter]:
                released.append((self._earliest_ns[waiter], waiter))
        return released

    def _come(self, calls: list[tuple[int, int]]) -> None:
        """These (arrival, row) are to come; of those that are turned away then, whoever waits for them."""
        calls = calls.copy()
        while calls:
            arrival_ns, row = calls.pop()
            self._requests.arrival_ns[row] = arrival_ns
            if self._is_accepted[row]:
                heappush(self._coming, (arrival_ns, row))
            else:
                calls += self._released(row, arrival_ns)
        self.next_arrival_ns = self._coming[0][0] if self._coming else NO_ARRIVAL
