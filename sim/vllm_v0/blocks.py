"""A pool of blocks with reference counts: one on the device, one on the host."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Protocol

import numpy as np


class Pool(Protocol):
    """Blocks with reference counts: what block tables are made of."""

    name: str
    num_blocks: int

    @property
    def refs(self) -> Seq[int]:
        """Tables and pins that hold each block."""
        ...

    @property
    def num_unheld_blocks(self) -> int:
        """Blocks that can be taken."""
        ...

    @property
    def num_free_blocks(self) -> int:
        """The same without those whose content can be used again."""
        ...

    def free_block_ids(self) -> list[int]:
        """The free blocks, by address."""
        ...

    def largest_free_run(self) -> int:
        """Most adjacent free blocks."""
        ...

    def take(self, num: int) -> list[int]:
        """Unheld blocks, each held once from now on. The caller has seen that there are as many."""
        ...

    def share(self, block_ids: Iterable[int]) -> None:
        """One more table holds each of these."""
        ...

    def drop(self, block_ids: Seq[int]) -> int:
        """One table or pin less holds each of these, in the order of a table. Returns how many nobody holds now."""
        ...

    def check(self, holders: Iterable[tuple[str, Seq[int]]]) -> None:
        """Recount from all tables and pins, given with a name each for the message: see `check_counts`."""
        ...


class BlockPool:
    """Ids of equal blocks, each free or held by `refs[id]` block tables and pins.

    The free ones are a stack: the block freed last is taken first; at the start block 0 is on top.
    """

    def __init__(self, name: str, num_blocks: int) -> None:
        self.name = name
        self.num_blocks = num_blocks
        self.refs = array("q", [0]) * num_blocks
        self._free = array("q", range(num_blocks - 1, -1, -1))

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    num_unheld_blocks = num_free_blocks

    def free_block_ids(self) -> list[int]:
        return sorted(self._free)

    def largest_free_run(self) -> int:
        used_blocks = np.flatnonzero(np.frombuffer(self.refs, dtype=np.int64))
        edges = np.concatenate(([-1], used_blocks, [self.num_blocks]))
        return int(np.diff(edges).max() - 1)

    def take(self, num: int) -> list[int]:
        assert num <= len(self._free), f"{num} {self.name} blocks wanted, {len(self._free)} free"
        if not num:
            return []
        block_ids = self._free[: -num - 1 : -1].tolist()
        del self._free[-num:]
        for block_id in block_ids:
            self.refs[block_id] = 1
        return block_ids

    def share(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            self.refs[block_id] += 1

    def drop(self, block_ids: Iterable[int]) -> int:
        refs, free, num_before = self.refs, self._free, len(self._free)
        for block_id in block_ids:
            refs[block_id] -= 1
            if not refs[block_id]:
                free.append(block_id)
        return len(free) - num_before

    def check(self, holders: Iterable[tuple[str, Seq[int]]]) -> None:
        check_counts(self, self._free, holders)


def check_counts(
    pool: Pool, unheld: Iterable[int], holders: Iterable[tuple[str, Seq[int]]]
) -> None:
    """Recount a pool from its list of unheld blocks, and from all tables and pins with a name each for the message.

    INV-2: a block is unheld or held, and once in the list. INV-3: its count is that of the tables and pins.
    INV-1: both add up to the pool.
    """
    counted: Counter[int] = Counter()
    for name, block_ids in holders:
        for block_id in block_ids:
            assert 0 <= block_id < pool.num_blocks, (
                f"INV-2: {name} holds {pool.name} block {block_id} of {pool.num_blocks}"
            )
        counted.update(block_ids)
        assert len(set(block_ids)) == len(block_ids), (
            f"INV-3: {name} holds a {pool.name} block twice: {list(block_ids)}"
        )
    for block_id, num_refs in enumerate(pool.refs):
        assert num_refs == counted[block_id], (
            f"INV-3: {pool.name} block {block_id} is in {counted[block_id]} tables and pins, "
            f"its count says {num_refs}"
        )
    free = Counter(unheld)
    for block_id, times in free.items():
        assert (times, counted[block_id]) == (1, 0), (
            f"INV-2: {pool.name} block {block_id} is {times} times in the free list and in "
            f"{counted[block_id]} tables and pins"
        )
    num_held = len(+counted)
    assert num_held + len(free) == pool.num_blocks, (
        f"INV-1: {num_held} {pool.name} blocks held + {len(free)} free = {num_held + len(free)}, "
        f"the pool has {pool.num_blocks}"
    )
