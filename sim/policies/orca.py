"""Orca's reservations on a buddy allocator, as in the PagedAttention paper (Kwon et al. 2023, section 6.1)."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from ..buddy import Buddy
from ..sequence import Sequence
from .base import Allocator
from .policy import PolicySettings, merge_runs


class _Orca(Allocator):
    """Reserve n slots for a whole request, rounded up to a power of two; never grow, never preempt."""

    chunked_prefill: ClassVar[bool] = False
    options: ClassVar[frozenset[str]] = frozenset()
    largest_grant_is: ClassVar[str] = "the largest power of two in an empty pool"

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self._max_model_len = settings.max_model_len
        self._buddy = Buddy(self.num_slots)

    @abstractmethod
    def reservation(self, num_prompt_tokens: int, num_output_tokens: int) -> int:
        """n, in slots, before it is cut to max_model_len."""

    def _order(self, num_prompt_tokens: int, num_output_tokens: int) -> tuple[int, int]:
        asked = min(self._max_model_len, self.reservation(num_prompt_tokens, num_output_tokens))
        return asked, Buddy.order_of(asked)

    def largest_need(self, num_prompt_tokens: int, num_output_tokens: int, max_tokens: int) -> int:
        return 1 << self._order(num_prompt_tokens, num_output_tokens)[1]

    @property
    def largest_grant(self) -> int:
        return 1 << self.num_slots.bit_length() - 1

    def fits(self, seq: Sequence, num_tokens: int, others_running: bool) -> bool:
        return self._buddy.has_chunk(self._order(seq.num_prompt_tokens, seq.num_output_tokens)[1])

    def grant(self, seq: Sequence, num_tokens: int) -> None:
        seq.asked_slots, order = self._order(seq.num_prompt_tokens, seq.num_output_tokens)
        seq.room = seq.asked_slots
        seq.granted_slots = 1 << order
        seq.blocks = [self._buddy.take(order)]
        self.record("grant", seq, seq.blocks[0], seq.granted_slots)

    def free(self, seq: Sequence) -> None:
        first = seq.blocks.pop()
        self._buddy.give_back(first, Buddy.order_of(seq.granted_slots))
        self.record("free", seq, first, seq.granted_slots)

    def num_free_slots(self) -> int:
        return self._buddy.num_free_slots

    def unusable_slots(self, seq: Sequence, num_tokens: int) -> int:
        need = self.largest_need(seq.num_prompt_tokens, seq.num_output_tokens, seq.max_tokens)
        return sum(num for _, num in self._buddy.free_chunks() if num < need)

    def free_runs(self) -> list[tuple[int, int]]:
        return merge_runs(self._buddy.free_chunks())

    def runs(self, seq: Sequence) -> list[tuple[int, int]]:
        return [(first, seq.granted_slots) for first in seq.blocks]


class OrcaMax(_Orca):
    """Orca (Max): max_model_len slots per request, buddy allocator."""

    def reservation(self, num_prompt_tokens: int, num_output_tokens: int) -> int:
        return self._max_model_len


class OrcaPow2(_Orca):
    """Orca (Pow2): prompt plus output rounded up to a power of two, buddy allocator; knows the output within 2x."""

    def reservation(self, num_prompt_tokens: int, num_output_tokens: int) -> int:
        return num_prompt_tokens + (1 << Buddy.order_of(num_output_tokens))


class OrcaOracle(_Orca):
    """Orca (Oracle): prompt plus true output, buddy allocator; knows the output exactly."""

    def reservation(self, num_prompt_tokens: int, num_output_tokens: int) -> int:
        return num_prompt_tokens + num_output_tokens
