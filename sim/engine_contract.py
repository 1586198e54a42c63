"""What an engine promises to drivers, executors and the run directory, whichever scheduler it has."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Any, NamedTuple, Protocol

from .decisions import Decisions
from .plan import Limits, Plan
from .recorder import Recorder
from .requests import RequestTable


class Work(NamedTuple):
    """Tokens of one sequence that a step computes: positions [first, first + num_tokens)."""

    seq: Any  # with `row`; hashable by identity; `branch`, if a request has several sequences
    first: int
    num_tokens: int


class ArrivalQueue(Protocol):
    """What a driver asks of the queue."""

    @property
    def next_arrival_ns(self) -> int:
        """When the next request comes; NO_ARRIVAL: nobody will."""
        ...


class EngineContract(Protocol):
    """`plan` decides what the next step does, `commit` applies what it did.

    Made by `(requests, policy, limits, recorder, log)`. Whoever holds slots is told by `holders`, and by
    `policy.runs(seq)` which slots.
    """

    requests: RequestTable
    recorder: Recorder
    paranoid: bool  # recount after every plan and commit

    def __init__(
        self,
        requests: RequestTable,
        policy: Any,
        limits: Limits,
        recorder: Recorder,
        log: Decisions | None = None,
    ) -> None: ...

    @property
    def queue(self) -> ArrivalQueue: ...

    def plan(self, now_ns: int) -> Plan | None:
        """The next step, with its memory; None if nothing runs and nobody waits."""
        ...

    def work(self, plan: Plan) -> list[Work]:
        """What the first step of `plan` computes, in the order of the batch. Asked between its plan and its commit."""
        ...

    def holders(self) -> Iterable[Any]:
        """The sequences that hold slots."""
        ...

    def parts(self) -> dict[str, int]:
        """Slots of each part (live, reserved, ...) as the recorder counts them from the latest plan to its commit."""
        ...

    @property
    def refused_row(self) -> int | None:
        """The head of the queue, if the latest plan had no memory for it."""
        ...

    def commit(self, plan: Plan, ends_ns: Seq[int]) -> None:
        """The planned step, and perhaps some of those offered behind it, have ended at `ends_ns`.

        Tells `queue.finish` of every request whose last token came out, or a closed loop would stop there.
        """
        ...

    def idle(self, start_ns: int, end_ns: int) -> None:
        """Nothing ran and nobody waited from start to end."""
        ...

    def finish(self, end_ns: int) -> None:
        """The run is over. Raises AssertionError where INV-5 or INV-8 do not hold."""
        ...

    def details(self) -> dict[str, Any]:
        """What this engine adds to the summary of a run that has finished."""
        ...

    @property
    def moved_slots(self) -> int:
        """Slots copied within the pool."""
        ...

    @property
    def recomputed_tokens(self) -> int:
        """Tokens computed again."""
        ...

    @property
    def most_running(self) -> int:
        """The most requests that ran in any step."""
        ...

    @property
    def least_free_slots(self) -> int:
        """The fewest slots that nobody held in any step, between its plan and its commit."""
        ...
