"""A binary buddy allocator over a pool of any size (Knuth, TAOCP vol. 1, 2.5; pool not a power of two: see `Buddy`)."""

from __future__ import annotations

from bisect import bisect_left, insort


class Buddy:
    """Chunks of 2**order slots, split and merged by address.

    A pool that is no power of two starts as the powers of two of its binary expansion, largest first by address,
    so 15,728 slots are 8192 + 4096 + 2048 + 1024 + 256 + 64 + 32 + 16.
    """

    def __init__(self, num_slots: int) -> None:
        self._free: list[list[int]] = [
            [] for _ in range(num_slots.bit_length())
        ]  # by order, sorted by address
        self.num_free_slots = num_slots
        first = 0
        for order in reversed(range(num_slots.bit_length())):
            if num_slots >> order & 1:
                self._free[order].append(first)
                first += 1 << order

    @staticmethod
    def order_of(num_slots: int) -> int:
        """The smallest order whose chunk holds `num_slots` (at least 1)."""
        return (num_slots - 1).bit_length()

    def has_chunk(self, order: int) -> bool:
        """Whether `take` would succeed."""
        return any(self._free[order:])

    def take(self, order: int) -> int:
        """First slot of the lowest chunk of the smallest order that serves; the rest of a larger one is split off."""
        source = next(larger for larger in range(order, len(self._free)) if self._free[larger])
        first = self._free[source].pop(0)
        for half in reversed(range(order, source)):
            insort(self._free[half], first + (1 << half))
        self.num_free_slots -= 1 << order
        return first

    def give_back(self, first: int, order: int) -> None:
        """Free a chunk and merge it as far as it goes; its buddy is the chunk whose address differs in bit `order`."""
        self.num_free_slots += 1 << order
        while order + 1 < len(self._free):
            chunks = self._free[order]
            buddy = first ^ 1 << order
            at = bisect_left(chunks, buddy)
            if at == len(chunks) or chunks[at] != buddy:
                break
            chunks.pop(at)
            first &= ~(1 << order)
            order += 1
        insort(self._free[order], first)

    def free_chunks(self) -> list[tuple[int, int]]:
        """(first slot, number of slots) of every free chunk, by address."""
        return sorted(
            (first, 1 << order) for order, chunks in enumerate(self._free) for first in chunks
        )
