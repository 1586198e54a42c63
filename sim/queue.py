"""The waiting queue: first come first served, preempted sequences foremost."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from .prompts import UNKNOWN_PROMPT
from .requests import RequestTable
from .sequence import Sequence

Waiting = TypeVar("Waiting")

NO_ARRIVAL = 1 << 62  # ns, after everything


def sequence_of(requests: RequestTable, row: int) -> Sequence:
    """A request that is its one sequence."""
    return Sequence(
        row,
        requests.num_prompt_tokens[row],
        requests.num_output_tokens[row],
        requests.max_tokens[row],
        requests.prompts[row] if requests.prompts else UNKNOWN_PROMPT,
    )


class WaitingQueue(Generic[Waiting]):
    """Recorded arrivals: fresh requests are two positions in the list of accepted rows.

    A scheduler calls `advance` at each plan, looks at `head`, calls `pop` when it has admitted it, and `finish` when
    the last token of a request is out. Only the head is ever made, by `make`. The end of a row in `awaited` may bring
    in others at once: no plan may go on behind it unattended.
    """

    awaited: Collection[int] = frozenset()

    def __init__(
        self, requests: RequestTable, make: Callable[[RequestTable, int], Waiting]
    ) -> None:
        self._requests = requests
        self._make = make
        self._rows = requests.accepted
        self._arrivals = [requests.arrival_ns[row] for row in self._rows]
        self._num_arrived = 0
        self._num_admitted = 0
        self._preempted: deque[Waiting] = deque()
        self.next_arrival_ns = self._arrivals[0] if self._arrivals else NO_ARRIVAL
        self._head: Waiting | None = None  # of the fresh ones, once somebody has looked at it
        self._head_row = -1

    def advance(self, now_ns: int) -> int:
        """Let in everybody who has arrived by `now_ns`. Returns how many wait."""
        if self.next_arrival_ns <= now_ns:
            self._num_arrived = bisect_right(self._arrivals, now_ns, self._num_arrived)
            more = self._num_arrived < len(self._arrivals)
            self.next_arrival_ns = self._arrivals[self._num_arrived] if more else NO_ARRIVAL
        return self._num_arrived - self._num_admitted + len(self._preempted)

    @property
    def all_admitted(self) -> bool:
        """Whether every accepted request of the trace has been admitted at least once."""
        return self._num_admitted == len(self._rows)

    def head(self) -> Waiting | None:
        """The next in line, None if nobody waits."""
        if self._preempted:
            return self._preempted[0]
        if self._head is None and (row := self._first_row()) is not None:
            self._head, self._head_row = self._make(self._requests, row), row
        return self._head

    def pop(self, now_ns: int) -> None:
        """The head has been admitted."""
        if self._preempted:
            self._preempted.popleft()
            return
        assert self._head is not None, "a head is popped that nobody has looked at"
        self._requests.admitted_ns[self._head_row] = now_ns
        self._num_admitted += 1
        self._head = None

    def finish(self, row: int, end_ns: int) -> None:
        """The last token of request `row` has come out. At recorded arrivals nobody waits for it."""

    def push_preempted(self, waiting: Waiting) -> None:
        """Put a preempted one back before everybody else; several of one step are pushed latest first."""
        self._preempted.appendleft(waiting)

    def _first_row(self) -> int | None:
        """The fresh request that has waited longest."""
        if self._num_admitted == self._num_arrived:
            return None
        return self._rows[self._num_admitted]
