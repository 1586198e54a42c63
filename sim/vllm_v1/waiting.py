"""Who waits, and who is next (vllm/v1/core/sched/request_queue.py)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Protocol

from .request import Request


class WaitingQueue(Protocol):
    """The head is the only one that can be admitted."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...

    def head(self) -> Request: ...

    def pop(self) -> Request: ...

    def add(self, request: Request) -> None: ...

    def put_back(self, request: Request) -> None:
        """A preempted request waits again."""
        ...

    def remove(self, request: Request) -> None: ...


class FirstComeFirstServed:
    """In order of arrival; preempted ones foremost, the one preempted last before the others."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def head(self) -> Request:
        return self._requests[0]

    def pop(self) -> Request:
        return self._requests.popleft()

    def add(self, request: Request) -> None:
        self._requests.append(request)

    def put_back(self, request: Request) -> None:
        self._requests.appendleft(request)

    def remove(self, request: Request) -> None:
        self._requests.remove(request)


class ByPriority:
    """The smallest (priority, order of arrival) first, preempted ones among the others."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Request]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, _, request in sorted(self._heap, key=lambda entry: entry[:2]))

    def head(self) -> Request:
        return self._heap[0][2]

    def pop(self) -> Request:
        return heappop(self._heap)[2]

    def add(self, request: Request) -> None:
        heappush(self._heap, (request.priority, request.rank, request))

    put_back = add

    def remove(self, request: Request) -> None:
        self._heap = [entry for entry in self._heap if entry[2] is not request]
        heapify(self._heap)


def waiting_queue(policy: str) -> WaitingQueue:
    """The queue of scheduling policy `fcfs` or `priority`."""
    return ByPriority() if policy == "priority" else FirstComeFirstServed()
