"""The blocks: who is free, in the order of reuse, and whose content can be found."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Protocol

import numpy as np

NULL_BLOCK = 0


class CacheListener(Protocol):
    """Who is told what becomes findable and what no longer is."""

    def removed(self, key: int) -> None: ...


class BlockPool:
    """Reference counts, the free queue and the map from identities to blocks (vllm/v1/core/block_pool.py).

    The identity of a block is a positive integer, its key. A block without references is in the free queue, front
    first in line for reuse, and keeps its key there until it is taken. Several blocks may have one key: who looks it
    up gets the one that has had it longest. What is freed goes to the back of the queue if it has a key, else to the
    front; `free_to_back`: always to the back, as in releases before that rule. The first `num_null_blocks` are never
    handed out.
    """

    def __init__(
        self, num_blocks: int, free_to_back: bool = False, num_null_blocks: int = NULL_BLOCK + 1
    ) -> None:
        self.num_blocks = num_blocks
        self.num_null_blocks = num_null_blocks
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_null_blocks, num_blocks))
        self.references = [0] * num_blocks
        self.keys = [0] * num_blocks  # 0: the content cannot be found
        self.by_key: dict[int, int | dict[int, None]] = {}
        self.num_cached_free = 0  # blocks of the free queue that have a key
        self.num_stored = self.num_evicted = 0  # keys given to blocks and taken from them, ever
        self.listener: CacheListener | None = None
        self._free_to_back = free_to_back

    def take(self, num: int) -> list[int]:
        """The first `num` blocks of the free queue, each with one reference and without what it held."""
        pop, references, keys = self.free.popitem, self.references, self.keys
        blocks = []
        for _ in range(num):
            block, _ = pop(False)
            if keys[block]:
                self._evict(block)
            references[block] = 1
            blocks.append(block)
        return blocks

    def _evict(self, block: int) -> None:
        key = self.keys[block]
        self.keys[block] = 0
        self.num_cached_free -= 1
        self.num_evicted += 1
        found = self.by_key[key]
        if isinstance(found, dict):
            del found[block]
        if not isinstance(found, dict) or not found:
            del self.by_key[key]
        if self.listener is not None:
            self.listener.removed(key)

    def touch(self, blocks: Iterable[int]) -> None:
        """One more reference to each block that was found."""
        free, references, num_null = self.free, self.references, self.num_null_blocks
        for block in blocks:
            if block < num_null:
                continue
            if not references[block]:
                del free[block]
                self.num_cached_free -= 1
            references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """One reference less to each block, in order of reuse: the first one to be reused comes first."""
        free, references, keys = self.free, self.references, self.keys
        num_null = self.num_null_blocks
        to_front, to_back = [], []
        for block in blocks:
            if block < num_null:
                continue
            references[block] -= 1
            if not references[block]:
                if keys[block]:
                    self.num_cached_free += 1
                    to_back.append(block)
                elif self._free_to_back:
                    to_back.append(block)
                else:
                    to_front.append(block)
        for block in reversed(to_front):
            free[block] = None
            free.move_to_end(block, False)
        for block in to_back:
            free[block] = None

    def store(self, block: int, key: int) -> None:
        """The content of a block that has no key can be found by `key` from now on."""
        self.keys[block] = key
        self.num_stored += 1
        found = self.by_key.setdefault(key, block)
        if found != block:
            if isinstance(found, dict):
                found[block] = None
            else:
                self.by_key[key] = {found: None, block: None}

    def find(self, key: int) -> int:
        """The block that has had `key` longest, or NULL_BLOCK if none has it."""
        found = self.by_key.get(key, NULL_BLOCK)
        return next(iter(found)) if isinstance(found, dict) else found

    def num_free_of(self, blocks: Seq[int]) -> int:
        """How many of these are in the free queue."""
        references, num_null = self.references, self.num_null_blocks
        return sum(not references[block] for block in blocks if block >= num_null)

    def unheld(self, is_cached: bool) -> list[int]:
        """Blocks without references that have a key, or that have none, by address."""
        keys = self.keys
        return sorted(block for block in self.free if (keys[block] != 0) == is_cached)

    def largest_free_run(self) -> int:
        """Most adjacent blocks without a reference or a key."""
        is_used = np.ones(self.num_blocks + 2, dtype=bool)
        is_cached = np.fromiter(map(bool, self.keys), dtype=bool, count=self.num_blocks)
        is_used[1:-1] = np.array(self.references, dtype=bool) | is_cached
        is_used[1 : 1 + self.num_null_blocks] = True
        used_blocks = np.flatnonzero(is_used)
        return int((used_blocks[1:] - used_blocks[:-1]).max() - 1)

    def check_keys(self) -> None:
        """Recount what can be found from the keys of the blocks. Raises AssertionError."""
        keyed = {block: key for block, key in enumerate(self.keys) if key}
        found = {
            block: key
            for key, blocks in self.by_key.items()
            for block in (blocks if isinstance(blocks, dict) else [blocks])
        }
        assert found == keyed, (
            f"INV-2: {len(found)} blocks can be found, {len(keyed)} have a key, or others"
        )
        num_cached_free = sum(block in self.free for block in keyed)
        assert num_cached_free == self.num_cached_free, (
            f"INV-1: {num_cached_free} free blocks have a key, the pool says {self.num_cached_free}"
        )
