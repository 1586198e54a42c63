"""A link between two memories that carries one transfer after the other."""

from __future__ import annotations

from dataclasses import dataclass

NS_PER_S = 10**9


@dataclass(frozen=True)
class Link:
    """What copies of blocks over a link cost: their bytes, and something for each copy.

    A block is `copies_per_block` pieces of memory (K and V of each layer lie apart), each copied on its own.
    """

    bytes_per_s: int = 1
    copy_ns: int = 0
    copies_per_block: int = 1
    block_bytes: int = 0

    def transfer_ns(self, num_blocks: int) -> int:
        """Nanoseconds for so many blocks, rounded up once."""
        bytes_ns = -(-num_blocks * self.block_bytes * NS_PER_S // self.bytes_per_s)
        return bytes_ns + num_blocks * self.copies_per_block * self.copy_ns


NO_COST = Link()


class Schedule:
    """When transfers over one link end: it is arithmetic on the time until which the link is busy."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.busy_until_ns = 0
        self.busy_ns = 0

    def transfer(self, num_blocks: int, now_ns: int) -> int:
        """Queue a transfer behind those that are under way. Returns when it ends."""
        duration_ns = self._link.transfer_ns(num_blocks)
        self.busy_until_ns = max(self.busy_until_ns, now_ns) + duration_ns
        self.busy_ns += duration_ns
        return self.busy_until_ns
