"""Everything an allocator did, in order, with ids."""

from __future__ import annotations

from array import array


class Decisions:
    """Columns of `decisions.parquet`. The engine sets `step`, the allocator adds the rest.

    Actions: `grant` at admission, `extend` while running, `move` (the target of a copy, or of a slide by compaction),
    `vacate` (the source of a copy, once the step has committed), `free`.
    """

    def __init__(self) -> None:
        self.step = 0
        self.steps = array("q")
        self.actions: list[str] = []
        self.rows = array("q")
        self.firsts = array("q")
        self.nums = array("q")

    def add(self, action: str, row: int, first: int, num: int) -> None:
        """`first` is a block id of a paged policy, else the first of `num` slots."""
        self.steps.append(self.step)
        self.actions.append(action)
        self.rows.append(row)
        self.firsts.append(first)
        self.nums.append(num)
