"""A whole-prefix cache for each of a few places, as in the server of llama.cpp."""

from __future__ import annotations

from typing import ClassVar

from ..prompts import (
    UNKNOWN_PROMPT,
    Pieces,
    first_pieces,
    num_common_tokens,
    num_known_tokens,
)
from ..sequence import Sequence
from .base import Allocator
from .policy import PolicySettings, merge_runs


class Slots(Allocator):
    """max_num_seqs equal places; a finished prompt stays in its place for the next one that begins alike, as llama.cpp.

    A request takes the free place whose prompt has the longest common prefix with its own, if that is at least one
    token, else the one free for the longest time, those never used first, by address. (The server of llama.cpp wants a
    tenth of the prompt in common, unless told otherwise.) The tokens in common are not computed again, except the last
    one of a prompt, which gives the first token of the answer. Answers are not used again.
    """

    reuses_prefixes: ClassVar[bool] = True
    options: ClassVar[frozenset[str]] = frozenset()
    largest_grant_is: ClassVar[str] = "a place, the pool divided by --max-num-seqs"

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self._place_slots = min(settings.max_model_len, self.num_slots // settings.max_num_seqs)
        # A place is named by its first slot. Free ones with what they keep, the one left earliest first.
        self._places_end = settings.max_num_seqs * self._place_slots
        firsts = range(0, self._places_end, self._place_slots or 1)
        self._kept: dict[int, Pieces] = dict.fromkeys(firsts, UNKNOWN_PROMPT)
        # A held place with the tokens that its holder has in it, or computes in this step.
        self._filled: dict[int, int] = {}
        self._num_cached_slots = 0
        self._num_free_slots = self.num_slots

    def largest_need(self, num_prompt_tokens: int, num_output_tokens: int, max_tokens: int) -> int:
        return num_prompt_tokens + num_output_tokens - 1

    @property
    def largest_grant(self) -> int:
        return self._place_slots

    def _choose(self, seq: Sequence) -> tuple[int, int]:
        """(first slot, tokens in common) of the place for `seq`; of equal ones that left earliest."""
        best, most = next(iter(self._kept)), 0
        for first, pieces in self._kept.items():
            num_common = num_common_tokens(pieces, seq.pieces)
            if num_common > most:
                best, most = first, num_common
        return best, most

    def num_hit_tokens(self, seq: Sequence) -> int:
        return min(self._choose(seq)[1], seq.known - 1) if self._kept else 0

    def fits(self, seq: Sequence, num_tokens: int, others_running: bool) -> bool:
        return bool(self._kept)

    def grant(self, seq: Sequence, num_tokens: int) -> None:
        first, _ = self._choose(seq)
        num_cached = num_known_tokens(self._kept.pop(first))
        self._num_cached_slots -= num_cached
        self._num_free_slots -= self._place_slots - num_cached
        self._filled[first] = num_tokens
        seq.blocks = [first]
        seq.room = seq.asked_slots = seq.granted_slots = self._place_slots
        self.record("grant", seq, first, self._place_slots)

    def extend(self, seq: Sequence, num_tokens: int) -> bool:
        self._filled[seq.blocks[0]] = num_tokens
        return True

    def free(self, seq: Sequence) -> None:
        first = seq.blocks.pop()
        kept = first_pieces(seq.pieces, self._filled.pop(first))
        num_cached = num_known_tokens(kept)
        self._kept[first] = kept  # behind all others: it is the one left latest
        self._num_cached_slots += num_cached
        self._num_free_slots += self._place_slots - num_cached
        self.record("free", seq, first, self._place_slots)

    def num_free_slots(self) -> int:
        # What is left behind the last place is free, too, though it serves nobody.
        return self._num_free_slots

    def num_cached_slots(self) -> int:
        return self._num_cached_slots

    def free_runs(self) -> list[tuple[int, int]]:
        pieces = []
        for first, kept in sorted(self._kept.items()):
            num_cached = num_known_tokens(kept)
            if num_cached < self._place_slots:
                pieces.append((first + num_cached, self._place_slots - num_cached))
        if self._places_end < self.num_slots:
            pieces.append((self._places_end, self.num_slots - self._places_end))
        return merge_runs(pieces)

    def cached_runs(self) -> list[tuple[int, int]]:
        return merge_runs(
            (first, num_known_tokens(kept)) for first, kept in sorted(self._kept.items()) if kept
        )

    def runs(self, seq: Sequence) -> list[tuple[int, int]]:
        return [(first, self._place_slots) for first in seq.blocks]
