"""Paging as in vLLM: fixed blocks behind a block table, taken as tokens come (Kwon et al. 2023, section 4)."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import ClassVar

import numpy as np

from ..sequence import Sequence
from .base import Allocator
from .policy import PolicySettings, merge_runs


class Paged(Allocator):
    """Blocks on demand behind a block table, as in vLLM; when they run out, the latest is preempted and recomputed."""

    interchangeable: ClassVar[bool] = True
    options: ClassVar[frozenset[str]] = frozenset({"admission", "watermark"})

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self.growth_tokens = self.growth_slots = self.block_slots = settings.block_size
        self._num_blocks = self.num_slots // self.block_slots
        assert self._num_blocks * self.block_slots == self.num_slots, (
            f"a pool of {self.num_slots} slots is no whole number of {self.block_slots}-token blocks"
        )
        # A stack: the block freed last is taken first. At the start block 0 is on top.
        self._free_block_ids = list(range(self._num_blocks - 1, -1, -1))
        self._whole_sequence_must_fit = settings.admission == "full"
        # vLLM's rule: int(watermark x blocks) stay free at an admission while something runs.
        self._watermark_blocks = int(settings.watermark * self._num_blocks)

    def largest_need(self, num_prompt_tokens: int, num_output_tokens: int, max_tokens: int) -> int:
        return (
            -(-(num_prompt_tokens + num_output_tokens - 1) // self.block_slots) * self.block_slots
        )

    def fits(self, seq: Sequence, num_tokens: int, others_running: bool) -> bool:
        tokens = seq.known if self._whole_sequence_must_fit else num_tokens
        needed = -(-tokens // self.block_slots)
        if others_running:
            needed += self._watermark_blocks
        return needed <= len(self._free_block_ids)

    def grant(self, seq: Sequence, num_tokens: int) -> None:
        self._take(seq, -(-num_tokens // self.block_slots), "grant")

    def extend(self, seq: Sequence, num_tokens: int) -> bool:
        needed = -(-num_tokens // self.block_slots) - len(seq.blocks)
        if needed > len(self._free_block_ids):
            return False
        self._take(seq, needed, "extend")
        return True

    def _take(self, seq: Sequence, num_blocks: int, action: str) -> None:
        if num_blocks:
            block_ids = self._free_block_ids[: -num_blocks - 1 : -1]
            del self._free_block_ids[-num_blocks:]
            seq.blocks.extend(block_ids)
            if self.log is not None:
                for block_id in block_ids:
                    self.log.add(action, seq.row, block_id, 1)
        seq.room = seq.asked_slots = seq.granted_slots = len(seq.blocks) * self.block_slots

    def grow(self, seqs: Seq[Sequence]) -> int:
        free_block_ids, num_served = self._free_block_ids, len(seqs)
        if num_served > len(free_block_ids):
            num_served = len(free_block_ids)
            seqs = seqs[:num_served]
        for seq in seqs:
            seq.blocks.append(free_block_ids.pop())
        if self.log is not None:
            for seq in seqs:
                self.log.add("extend", seq.row, seq.blocks[-1], 1)
        return num_served

    def free(self, seq: Sequence) -> None:
        seq.asked_slots = seq.granted_slots = len(seq.blocks) * self.block_slots
        self._free_block_ids.extend(seq.blocks)
        if self.log is not None:
            for block_id in seq.blocks:
                self.log.add("free", seq.row, block_id, 1)
        seq.blocks = []

    def num_free_slots(self) -> int:
        return len(self._free_block_ids) * self.block_slots

    def unusable_slots(self, seq: Sequence, num_tokens: int) -> int:
        # Any free block serves anyone, except those that the watermark keeps back.
        return min(len(self._free_block_ids), self._watermark_blocks) * self.block_slots

    def free_runs(self) -> list[tuple[int, int]]:
        size = self.block_slots
        return merge_runs((block * size, size) for block in sorted(self._free_block_ids))

    def largest_free_run(self) -> int:
        used = np.ones(self._num_blocks + 2, dtype=bool)
        used[1:-1][np.array(self._free_block_ids, dtype=np.int64)] = False
        used_blocks = np.flatnonzero(used)
        return int((used_blocks[1:] - used_blocks[:-1]).max() - 1) * self.block_slots

    def runs(self, seq: Sequence) -> list[tuple[int, int]]:
        return [(block * self.block_slots, self.block_slots) for block in seq.blocks]
