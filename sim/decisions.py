"""Everything a memory manager did, in order, with ids."""

from __future__ import annotations

from array import array

NO_SOURCE = -1


class Decisions:
    """Columns of `decisions.parquet`. The engine sets `step`, whoever decides adds the rest.

    `grant` at admission, `extend` while running, `free`: units that go to a sequence or come back.
    `move`, the target of a copy, or of a slide by compaction; `vacate`, the source of a copy, once the step has
    committed. `share`: a block that is in the pool already joins a table (a prefix hit, a fork). `copy`: a block
    takes the place of `source`, which others still hold, in a table, and its content. `swap_out` and `swap_in`: a
    block of the host takes the content of the device's block `source`, or the other way round; when the transfer has
    ended, that source is free: `vacate`, or `vacate_host`. `skip`: the table of a group of layers with a window begins
    with `num` null blocks, because what is found of a prompt begins behind them; shares follow. In such tables a block
    that is freed leaves its place to the null block.
    """

    def __init__(self) -> None:
        self.step = 0
        self.steps = array("q")
        self.actions: list[str] = []
        self.rows = array("q")
        self.branches = array("q")
        self.firsts = array("q")
        self.nums = array("q")
        self.sources = array("q")

    def add(
        self,
        action: str,
        row: int,
        first: int,
        num: int,
        branch: int = 0,
        source: int = NO_SOURCE,
    ) -> None:
        """`first` is a block id of a policy with blocks, else the first of `num` slots.

        `branch` numbers the block tables of a request: those of its sequences, or of its groups of layers.
        """
        self.steps.append(self.step)
        self.actions.append(action)
        self.rows.append(row)
        self.branches.append(branch)
        self.firsts.append(first)
        self.nums.append(num)
        self.sources.append(source)
