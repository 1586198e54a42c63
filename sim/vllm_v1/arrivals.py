"""Requests of a trace as the scheduler gets them when they come."""

from __future__ import annotations

from collections.abc import Iterator

from ..closed_loop import queue_of
from ..queue import WaitingQueue
from ..requests import RequestTable
from .accounts import TracedRequest, traced_request
from .content import spans_of_request


class Arrivals:
    """Who has come goes to the scheduler's own queue at once; of the engine's, only who is to come is of use."""

    def __init__(self, requests: RequestTable, max_model_len: int) -> None:
        self._max_model_len = max_model_len
        self.queue: WaitingQueue[TracedRequest] = queue_of(requests, self._request)

    def arrived(self, now_ns: int) -> Iterator[TracedRequest]:
        """Those who have come by `now_ns` and have not been told of, in order."""
        self.queue.advance(now_ns)
        while (request := self.queue.head()) is not None:
            self.queue.pop(now_ns)
            yield request

    def _request(self, table: RequestTable, row: int) -> TracedRequest:
        request = traced_request(
            row,
            table.num_prompt_tokens[row],
            table.num_output_tokens[row],
            self._max_model_len,
            table.priorities[row] if table.priorities else 0,
        )
        if table.prompts:
            request.spans = spans_of_request(
                table.prompts[row], row, request.num_prompt_tokens, request.end_tokens
            )
        return request
