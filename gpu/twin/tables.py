"""Block tables of the sequences that hold slots, kept between steps and changed as the decisions say."""

import numpy as np
import numpy.typing as npt

from .batch import Int32

Key = tuple[int, int]  # (row, branch)


def table_key(key: Key, group: int) -> Key:
    """Under what the log has the block table of a sequence for a group of layers.

    Of a request with several groups there is one sequence: its `branch` stands for the group.
    """
    row, branch = key
    return row, branch + group


def in_words(row: int, branch: int) -> str:
    """A sequence, in a message."""
    return f"request {row} branch {branch}" if branch else f"request {row}"


class BlockTables:
    """One row of block ids a sequence. Both dimensions grow as they must."""

    def __init__(self) -> None:
        self._ids: Int32 = np.zeros((16, 16), dtype=np.int32)
        self._lens = np.zeros(16, dtype=np.int64)
        self._places: dict[Key, int] = {}
        self._free_places = list(range(15, -1, -1))

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def of(self, key: Key) -> Int32:
        """Block ids of a sequence by logical block; a view. Empty if it holds nothing."""
        place = self._places.get(key)
        return self._ids[0, :0] if place is None else self._ids[place, : self._lens[place]]

    def of_request(self, row: int) -> list[Key]:
        """The sequences of a request that hold something."""
        return [key for key in self._places if key[0] == row]

    def rows(self, keys: list[Key], num_blocks: int) -> Int32:
        """The first `num_blocks` entries of each: [num_seqs, num_blocks], anything behind a table's end."""
        self._widen(num_blocks)
        rows: Int32 = self._ids[[self._places[key] for key in keys], :num_blocks]
        return rows

    def append(self, key: Key, first: int, num: int) -> None:
        """Blocks [first, first + num) follow what the sequence has."""
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = self._take_place()
        begin = int(self._lens[place])
        self._widen(begin + num)
        self._ids[place, begin : begin + num] = np.arange(first, first + num)
        self._lens[place] = begin + num

    def _widen(self, num_blocks: int) -> None:
        if num_blocks > self._ids.shape[1]:
            more = max(self._ids.shape[1], num_blocks - self._ids.shape[1])
            self._ids = np.pad(self._ids, ((0, 0), (0, more)))

    def replace(self, key: Key, old: int, new: int) -> None:
        """Block `new` takes the place of `old`."""
        ids = self.of(key)
        ids[ids == old] = new

    def replace_in_request(self, row: int, old: int, new: int) -> int:
        """The same in all tables of a request. Returns in how many it was."""
        keys = [key for key in self.of_request(row) if old in self.of(key)]
        for key in keys:
            self.replace(key, old, new)
        return len(keys)

    def remove(self, key: Key, first: int, num: int) -> None:
        """Blocks [first, first + num) leave the table; without any left the sequence has none."""
        ids = self.of(key)
        kept = ids[(ids < first) | (ids >= first + num)]
        ids[: len(kept)] = kept
        if len(kept):
            self._lens[self._places[key]] = len(kept)
        elif key in self._places:
            self._give_back(key)

    def begin(self, row: int) -> None:
        """A request is admitted: it has no tables."""

    def end(self) -> list[Key]:
        """What was to end has ended when its last block left."""
        return []

    def is_held(self, key: Key) -> npt.NDArray[np.bool_]:
        """Which of the entries stand for a block."""
        return np.ones(len(self.of(key)), dtype=bool)

    def _give_back(self, key: Key) -> None:
        """The sequence has no table any more."""
        place = self._places.pop(key)
        self._lens[place] = 0
        self._free_places.append(place)

    def _take_place(self) -> int:
        if not self._free_places:
            num = len(self._lens)
            self._ids = np.pad(self._ids, ((0, num), (0, 0)))
            self._lens = np.pad(self._lens, (0, num))
            self._free_places = list(range(2 * num - 1, num - 1, -1))
        return self._free_places.pop()
