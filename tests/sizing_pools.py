"""Pools for tests of what is built on an accounting."""

import math
from fractions import Fraction

from kvtwin.sim.sizing.accounting import SizedPool


class WindowPool(SizedPool):
    """Half of the memory grows by whole blocks, the other half stops at a window."""

    num_reserved_blocks = 1
    block_bytes = 1

    def __init__(self, num_blocks: int, block_size: int, window: int) -> None:
        self.num_blocks, self.block_size, self.window = num_blocks, block_size, window

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size

    def bytes_for(self, num_tokens: int) -> int:
        kept = math.ceil(min(num_tokens, self.window) / self.block_size)
        return math.ceil(num_tokens / self.block_size) + kept

    def concurrency(self, num_tokens: int) -> Fraction:
        return Fraction(self.num_blocks, self.bytes_for(num_tokens))

    def fits(self, num_tokens: int) -> bool:
        return self.bytes_for(num_tokens) <= self.num_blocks - self.num_reserved_blocks

    def sentences(self, deployment: object) -> tuple[str, ...]:
        return ()
