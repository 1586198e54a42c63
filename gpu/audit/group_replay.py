"""The same for groups of layers, whose tables keep the places of what is out of a window's sight."""

from typing import Any

from .planned import Key
from .replay import Replay
from .tables import GONE, Table


class GroupReplay(Replay):
    """A table for each (row, group). What leaves it is GONE for good: positions behind it stay theirs.

    The tables of a row end together, when none of them has a unit left and the row does not go on: a window that sees
    one token only may leave a table without any for a moment.
    """

    kind = "group"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._ended: set[int] = set()  # rows whose last unit has left

    def _settle(self) -> None:
        for row in list(self._ended):
            self._begin(row)

    def _begin(self, row: int) -> None:
        if row in self._ended:
            self._ended.discard(row)
            for key in [key for key in self.tables if key[0] == row]:
                self._end(key)

    def _join(self, step: int, key: Key, first: int, num: int) -> None:
        self._ended.discard(key[0])
        super()._join(step, key, first, num)

    def _skip(self, step: int, key: Key, first: int, num: int, source: int) -> None:
        """A table begins behind what is found of a prompt and out of sight."""
        self._begin(key[0])
        self.tables.setdefault(key, Table(since=step)).units += [GONE] * num

    def _emptied(self, key: Key) -> None:
        tables = [table for other, table in self.tables.items() if other[0] == key[0]]
        if all(unit == GONE for table in tables for unit in table.units):
            self._ended.add(key[0])

    def _tell_others(self, tables: list[Table], table: Table) -> None:
        """Groups have no unit in common."""
