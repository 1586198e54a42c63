"""Reservation of the maximum length, before paging and before any sizing by request."""

from __future__ import annotations

import heapq
from typing import ClassVar

from ..sequence import Sequence
from .base import Allocator
from .policy import PolicySettings, merge_runs


class StaticIteration(Allocator):
    """max_model_len slots per request, from admission to finish; requests join and leave at every step."""

    chunked_prefill: ClassVar[bool] = False
    options: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self._place_slots = settings.max_model_len
        # Places are numbered by address; the lowest free one is taken.
        self._free_places = list(range(self.num_slots // self._place_slots))

    def largest_need(self, num_prompt_tokens: int, num_output_tokens: int, max_tokens: int) -> int:
        return self._place_slots

    def fits(self, seq: Sequence, num_tokens: int, others_running: bool) -> bool:
        return bool(self._free_places)

    def grant(self, seq: Sequence, num_tokens: int) -> None:
        first = heapq.heappop(self._free_places) * self._place_slots
        seq.blocks = [first]
        seq.room = seq.asked_slots = seq.granted_slots = self._place_slots
        self.record("grant", seq, first, self._place_slots)

    def free(self, seq: Sequence) -> None:
        first = seq.blocks.pop()
        heapq.heappush(self._free_places, first // self._place_slots)
        self.record("free", seq, first, self._place_slots)

    def num_free_slots(self) -> int:
        # What is left behind the last place is free, too, though it serves nobody.
        return len(self._free_places) * self._place_slots + self.num_slots % self._place_slots

    def free_runs(self) -> list[tuple[int, int]]:
        num_places, rest = divmod(self.num_slots, self._place_slots)
        pieces = [
            (place * self._place_slots, self._place_slots) for place in sorted(self._free_places)
        ]
        if rest:
            pieces.append((num_places * self._place_slots, rest))
        return merge_runs(pieces)

    def runs(self, seq: Sequence) -> list[tuple[int, int]]:
        return [(first, self._place_slots) for first in seq.blocks]


class StaticBatch(StaticIteration):
    """max_model_len slots per request; a batch of the earliest requests runs until its last member ends."""

    whole_batch: ClassVar[bool] = True
    scheduling: ClassVar[str] = "whole batches"
