"""Where a policy without a cache computes: KV for one step, forgotten behind it."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .batch import Batch, Int32, Int64
from .content import ContentShape
from .pool import DevicePool
from .tables import Key


class Scratch:
    """Takes the place of a `DecisionFollower` where nothing is kept: there are no decisions to follow."""

    def __init__(self, shape: ContentShape, block_slots: int, device: str) -> None:
        self.pool = DevicePool(shape, block_slots, block_slots, device)
        self.released: list[Key] = []
        self._shape, self._device = shape, device
        self._num_used_slots = 0

    def follow(self, holders: Iterable[Any], firsts: Mapping[Key, int]) -> int:
        """Forget the step before. Nothing is copied, so that takes 0 ns of the step."""
        self.pool.poison([(0, self._num_used_slots)])
        return 0

    def tables_of(self, keys: list[Key], context_lens: Int64) -> Int32:
        """Blocks for these contexts, one sequence behind the other: [1, num_seqs, max_blocks]."""
        size = self.pool.block_slots
        num_blocks = -(-context_lens // size)
        firsts = np.cumsum(num_blocks) - num_blocks
        self._num_used_slots = int(num_blocks.sum()) * size
        if self._num_used_slots > self.pool.num_slots:
            num_slots = 2 * self._num_used_slots
            self.pool = DevicePool(self._shape, num_slots, size, self._device)
        tables: Int32 = (firsts[:, None] + np.arange(num_blocks.max(initial=0))).astype(np.int32)
        return tables[None]

    def unwritten(
        self, keys: list[Key], batch: Batch, firsts: Int64
    ) -> list[tuple[Key, int, Int64]]:
        """Nothing is found, so nothing is missing."""
        return []

    def slots_of(self, key: Key, group: int, positions: Int64) -> Int64:
        """Nobody keeps a slot."""
        raise AssertionError(f"{key} holds nothing between steps")

    def stored(self, keys: list[Key], batch: Batch) -> None:
        """A step has stored the KV of the batch: until the next one."""
