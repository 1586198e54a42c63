"""A closed loop by its definition: who has come is worked out from the trace and from who has ended."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from kvtwin.sim.queue import NO_ARRIVAL
from kvtwin.sim.requests import RequestTable


class NaiveQueue:
    """Same interface as `kvtwin.sim.queue.WaitingQueue`, but nobody tells it of an end."""

    def __init__(self, requests: RequestTable, make: Callable[[RequestTable, int], Any]) -> None:
        assert requests.waits is not None
        self._requests, self._make = requests, make
        self._now_ns = -1
        self._preempted: list[Any] = []  # the earliest first
        self._made: dict[int, Any] = {}  # by row, whoever was at the head
        self._admitted: set[int] = set()
        self._ends = b""
        self._arrivals: dict[int, int] = {}
        ends = requests.waits.offsets.tolist()
        self._awaited = [requests.waits.rows[a:b].tolist() for a, b in pairwise(ends)]

    def advance(self, now_ns: int) -> int:
        self._now_ns = now_ns
        return len(self._fresh()) + len(self._preempted)

    @property
    def next_arrival_ns(self) -> int:
        later = [at for at in self._known_arrivals().values() if at > self._now_ns]
        return min(later, default=NO_ARRIVAL)

    @property
    def all_admitted(self) -> bool:
        return self._admitted == set(self._requests.accepted)

    def head(self) -> Any:
        if self._preempted:
            return self._preempted[0]
        fresh = self._fresh()
        if not fresh:
            return None
        _, row = min(fresh)
        if row not in self._made:
            self._made[row] = self._make(self._requests, row)
        return self._made[row]

    def pop(self, now_ns: int) -> None:
        if self._preempted:
            del self._preempted[0]
            return
        _, row = min(self._fresh())
        self._requests.admitted_ns[row] = now_ns
        self._admitted.add(row)

    def push_preempted(self, preempted: Any) -> None:
        self._preempted.insert(0, preempted)

    def _fresh(self) -> list[tuple[int, int]]:
        """(arrival, row) of those who have come and have never been admitted."""
        return [
            (at, row)
            for row, at in self._known_arrivals().items()
            if at <= self._now_ns and row not in self._admitted
        ]

    def _known_arrivals(self) -> dict[int, int]:
        """By accepted row, as far as ends so far say; worked out anew whenever one more has ended."""
        table = self._requests
        if self._arrivals and self._ends == table.finished_ns.tobytes():
            return self._arrivals
        self._ends = table.finished_ns.tobytes()
        rejected = {rejection.row for rejection in table.rejections}
        came: dict[int, int] = {}
        ended: dict[int, int] = {}
        for row, awaited in enumerate(self._awaited):
            if not all(other in ended for other in awaited):
                continue
            think_ns = table.waits.think_ns[row]
            if not awaited:
                came[row] = table.trace_arrival_ns[row]
            elif think_ns >= 0:
                came[row] = max(ended[other] for other in awaited) + int(think_ns)
            else:
                recorded = table.trace_arrival_ns
                gaps = [came[other] + recorded[row] - recorded[other] for other in awaited]
                came[row] = max(*gaps, *(ended[other] for other in awaited))
            table.arrival_ns[row] = came[row]
            if row in rejected:
                ended[row] = came[row]
            elif table.finished_ns[row] >= 0:
                ended[row] = table.finished_ns[row]
        self._arrivals = {row: at for row, at in came.items() if row not in rejected}
        return self._arrivals
