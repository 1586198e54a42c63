"""Block tables of groups of layers: positions stay where they are when blocks in front of a window are given back."""

from collections import Counter

import numpy as np
import numpy.typing as npt

from .tables import BlockTables, Key

NULL_BLOCK = 0  # nobody's: it is never granted, and never written


class GroupTables(BlockTables):
    """A table for each (row, group). The null block is in the place of what a table does not have any more.

    A request's tables end together, when none of them has a block: of a window that sees one token only, a table may
    have none for a moment, and goes on.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_blocks: Counter[int] = Counter()  # that are not null, by row, all tables together
        self._ended: set[int] = set()  # rows whose last block was freed

    def begin(self, row: int) -> None:
        """A request is admitted: what it had before is over."""
        if row in self._ended:
            self._drop(row)

    def skip(self, key: Key, num: int) -> None:
        """The next `num` entries are null."""
        for _ in range(num):
            super().append(key, NULL_BLOCK, 1)

    def append(self, key: Key, first: int, num: int) -> None:
        super().append(key, first, num)
        self._num_blocks[key[0]] += num
        self._ended.discard(key[0])

    def remove(self, key: Key, first: int, num: int) -> None:
        """Blocks [first, first + num) leave the table, and their places are null."""
        ids = self.of(key)
        is_gone = (ids >= first) & (ids < first + num)
        ids[is_gone] = NULL_BLOCK
        self._num_blocks[key[0]] -= int(is_gone.sum())
        if not self._num_blocks[key[0]]:
            self._ended.add(key[0])

    def is_held(self, key: Key) -> npt.NDArray[np.bool_]:
        is_held: npt.NDArray[np.bool_] = self.of(key) != NULL_BLOCK
        return is_held

    def end(self) -> list[Key]:
        """Drop the tables of requests that have none of their blocks left. Returns them."""
        return [key for row in sorted(self._ended) for key in self._drop(row)]

    def _drop(self, row: int) -> list[Key]:
        keys = self.of_request(row)
        for key in keys:
            self._give_back(key)
        self._ended.discard(row)
        del self._num_blocks[row]
        return keys
