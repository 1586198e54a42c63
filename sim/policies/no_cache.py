"""Decoding without a KV cache: what the cache is for."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import ClassVar

from ..sequence import Sequence
from .base import Allocator
from .policy import PolicySettings


class NoCache(Allocator):
    """Nothing kept: each step recomputes every prefix, in quadratic time; bound by max_num_seqs and activations."""

    chunked_prefill: ClassVar[bool] = False
    keeps_kv: ClassVar[bool] = False
    options: ClassVar[frozenset[str]] = frozenset()
    largest_grant_is: ClassVar[str] = "the tokens whose activations fit into the pool's bytes"

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self.growth_tokens = 1
        # The bytes of the pool hold activations instead: this many tokens can be computed in one step.
        self._capacity_tokens = settings.activation_tokens
        self._used_tokens = 0

    def largest_need(self, num_prompt_tokens: int, num_output_tokens: int, max_tokens: int) -> int:
        return num_prompt_tokens + num_output_tokens - 1

    @property
    def largest_grant(self) -> int:
        return self._capacity_tokens

    def fits(self, seq: Sequence, num_tokens: int, others_running: bool) -> bool:
        return self._used_tokens + seq.known <= self._capacity_tokens

    def grant(self, seq: Sequence, num_tokens: int) -> None:
        seq.room = seq.known
        self._used_tokens += seq.known

    def grow(self, seqs: Seq[Sequence]) -> int:
        num_served = min(len(seqs), self._capacity_tokens - self._used_tokens)
        self._used_tokens += num_served
        for seq in seqs[:num_served]:
            seq.room += 1
        return num_served

    def free(self, seq: Sequence) -> None:
        self._used_tokens -= seq.room
        seq.room = 0

    def num_free_slots(self) -> int:
        return self.num_slots

    def unusable_slots(self, seq: Sequence, num_tokens: int) -> int:
        return 0

    def free_runs(self) -> list[tuple[int, int]]:
        return [(0, self.num_slots)]

    def runs(self, seq: Sequence) -> list[tuple[int, int]]:
        return []
