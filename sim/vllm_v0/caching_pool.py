"""A pool of blocks with reference counts, in which full blocks are found again by what they hold."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from ..vllm_v1.block_pool import BlockPool
from .blocks import check_counts


class CachingBlockPool(BlockPool):
    """vLLM V1's pool without a null block, as a `Pool`: blocks without a key are taken first, the last freed foremost.

    Those with a key come behind them in the order in which their last holders let them go.
    """

    def __init__(self, name: str, num_blocks: int) -> None:
        super().__init__(num_blocks, num_null_blocks=0)
        self.name = name

    @property
    def refs(self) -> Seq[int]:
        return self.references

    @property
    def num_unheld_blocks(self) -> int:
        return len(self.free)

    @property
    def num_free_blocks(self) -> int:
        return len(self.free) - self.num_cached_free

    def free_block_ids(self) -> list[int]:
        return self.unheld(is_cached=False)

    def share(self, block_ids: Iterable[int]) -> None:
        self.touch(block_ids)

    def drop(self, block_ids: Seq[int]) -> int:
        num_before = len(self.free)
        self.release(reversed(block_ids))  # the end of a table is reused before its beginning
        return len(self.free) - num_before

    def find_chain(self, keys: Iterable[int]) -> list[int]:
        """The longest run of blocks with these keys, from the first one on."""
        found = []
        for key in keys:
            if key not in self.by_key:
                break
            found.append(self.find(key))
        return found

    def check(self, holders: Iterable[tuple[str, Seq[int]]]) -> None:
        check_counts(self, list(self.free), holders)
        self.check_keys()
