"""What a replayed sequence holds, unit by unit."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .planned import Key

# A unit that has left its table, which closes up once the log has been followed, unless tables keep places.
GONE = -1


@dataclass
class Table:
    """What a sequence holds, by position: a unit of the pool, `in_host(unit)`, or GONE."""

    units: list[int] = field(default_factory=list)
    written: int = 0  # positions [0, written) have been computed, or were found in the pool
    before: int = 0  # the same, before the step in progress
    since: int = 0  # step of the first grant

    def place_of(self, unit: int) -> int:
        """Where a unit of the table will be when it has closed up."""
        return sum(other != GONE for other in self.units[: self.units.index(unit)])


class Source(NamedTuple):
    """Units `first` to `first + num - 1` that a sequence had at `place` of its table, until they are copied."""

    key: Key
    first: int  # or `in_host` of it
    num: int
    place: int


def in_host(unit: Any) -> Any:
    """How a table names a unit, or units, of host memory; its own inverse."""
    return -2 - unit
