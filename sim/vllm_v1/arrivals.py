"""Requests of a trace on their way to the scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from ..queue import NO_ARRIVAL
from ..requests import RequestTable
from .accounts import TracedRequest, traced_request
from .content import STREAM_BITS, Span, spans_of


class Arrivals:
    """Accepted requests in order of arrival, each made when it comes."""

    def __init__(self, requests: RequestTable, max_model_len: int) -> None:
        self._requests = requests
        self._max_model_len = max_model_len
        self._num_arrived = 0

    @property
    def next_arrival_ns(self) -> int:
        """When the next request comes; NO_ARRIVAL: nobody will."""
        rows = self._requests.accepted
        if self._num_arrived == len(rows):
            return NO_ARRIVAL
        return self._requests.arrival_ns[rows[self._num_arrived]]

    def arrived(self, now_ns: int) -> Iterator[TracedRequest]:
        """Those who have come by `now_ns` and have not been told of."""
        while self.next_arrival_ns <= now_ns:
            row = self._requests.accepted[self._num_arrived]
            self._num_arrived += 1
            yield self._request(row)

    def _request(self, row: int) -> TracedRequest:
        table = self._requests
        request = traced_request(
            row,
            table.num_prompt_tokens[row],
            table.num_output_tokens[row],
            self._max_model_len,
            table.priorities[row] if table.priorities else 0,
        )
        if table.prompts:
            request.spans = self._content(row, request.end_tokens)
        return request

    def _content(self, row: int, num_tokens: int) -> list[Span]:
        """What its tokens are; what the trace does not say is like nothing else."""
        spans, known = [], 0
        for first, num in spans_of(self._requests.prompts[row]):
            num = min(num, num_tokens - known)
            if num > 0:
                spans.append((first, num))
                known += num
        if known < num_tokens:
            # Streams of a trace are not negative.
            spans.append((-(row + 1) << STREAM_BITS, num_tokens - known))
        return spans
