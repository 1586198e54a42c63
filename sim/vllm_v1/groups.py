"""What layers of one kind need of the pool (vllm/v1/core/single_type_kv_cache_manager.py)."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from ..block_groups import most_window_blocks
from .block_pool import NULL_BLOCK, BlockPool
from .request import Request
from .settings import SchedulerSettings


class FullAttention:
    """One group whose layers read everything: its table keeps every block until the request ends."""

    kind = "full_attention"
    window: int | None = None

    def __init__(self, number: int, pool: BlockPool, settings: SchedulerSettings) -> None:
        self.number = number
        self.max_admission_blocks: int | None = None  # most that the whole-sequence test counts
        self._pool = pool
        self._num_groups = len(settings.windows)

    def keys(self, request: Request, begin: int, end: int) -> list[int]:
        """Under what the blocks [begin, end) of a request are found."""
        numbers = request.numbers[begin:end]
        if self._num_groups == 1:
            return numbers
        return [number * self._num_groups + self.number for number in numbers]

    def num_skipped_blocks(self, num_tokens: int) -> int:
        """Leading blocks that nobody reads who computes the token behind `num_tokens`."""
        return 0

    def take_skipped(self, request: Request, num_tokens: int) -> list[int]:
        """The blocks that the token behind `num_tokens` does not need, out of the table, the last one first."""
        return []

    def is_kept(self, request: Request, begin: int, end: int) -> Seq[bool] | None:
        """Which of the blocks [begin, end) are to be found later; None: all."""
        return None

    def longest_hit(self, rows: Seq[Seq[int]]) -> list[list[int]]:
        """Blocks of the longest prefix that the pool has: a row of keys, and of blocks, for each of several groups."""
        find = self._pool.find
        hits: list[list[int]] = [[] for _ in rows]
        if len(rows) == 1:
            hit = hits[0]
            for key in rows[0]:
                block = find(key)
                if block == NULL_BLOCK:
                    break
                hit.append(block)
            return hits
        for keys in zip(*rows, strict=True):
            blocks = [find(key) for key in keys]
            if NULL_BLOCK in blocks:
                break
            for hit, block in zip(hits, blocks, strict=True):
                hit.append(block)
        return hits


class SlidingWindow(FullAttention):
    """One group whose layers read the last `window` tokens: null blocks stand for what is out of sight."""

    kind = "sliding_window"
    window: int

    def __init__(
        self, number: int, window: int, pool: BlockPool, settings: SchedulerSettings
    ) -> None:
        super().__init__(number, pool, settings)
        self.window = window
        self.block_size = settings.block_size
        self.num_needed = -(
            -(window - 1) // self.block_size
        )  # blocks of the past in sight of a block's first token
        self.max_admission_blocks = most_window_blocks(
            window, self.block_size, settings.max_in_flight_tokens, settings.max_model_len
        )
        self._retention = settings.prefix_cache_retention_interval

    def num_skipped_blocks(self, num_tokens: int) -> int:
        return max(0, num_tokens - self.window + 1) // self.block_size

    def take_skipped(self, request: Request, num_tokens: int) -> list[int]:
        table = request.tables[self.number]
        skipped = []
        for index in range(min(self.num_skipped_blocks(num_tokens), len(table)) - 1, -1, -1):
            if table[index] == NULL_BLOCK:
                break
            skipped.append(table[index])
            table[index] = NULL_BLOCK
        return skipped

    def is_kept(self, request: Request, begin: int, end: int) -> Seq[bool] | None:
        needed, retention = self.num_needed, self._retention
        per_segment = 1 if retention is None else retention // self.block_size
        if per_segment and needed >= per_segment:
            return None
        kept = [
            per_segment > 0 and index % per_segment >= per_segment - needed
            for index in range(begin, end)
        ]
        # Where a later prompt can resume: before the last token of this one, and where this one could not.
        for tokens in (request.num_prompt_tokens - 1, request.boundary):
            stop = tokens // self.block_size
            for index in range(max(begin, stop - needed), min(end, stop)):
                kept[index - begin] = True
        return kept

    def longest_hit(self, rows: Seq[Seq[int]]) -> list[list[int]]:
        find, num_found = self._pool.find, 0
        hits = [[NULL_BLOCK] * len(keys) for keys in rows]
        for index in range(len(rows[0]) - 1, -1, -1):
            blocks = [find(keys[index]) for keys in rows]
            if NULL_BLOCK in blocks:
                num_found = 0
                continue
            for hit, block in zip(hits, blocks, strict=True):
                hit[index] = block
            num_found += 1
            if num_found >= self.num_needed:
                return [hit[: index + num_found] for hit in hits]
        # What begins with the first token needs nothing before it.
        return [hit[:num_found] for hit in hits]


def group_managers(pool: BlockPool, settings: SchedulerSettings) -> list[FullAttention]:
    """One for each group of the settings."""
    return [
        FullAttention(number, pool, settings)
        if window is None
        else SlidingWindow(number, window, pool, settings)
        for number, window in enumerate(settings.windows)
    ]


def alike(groups: Iterable[FullAttention]) -> list[list[FullAttention]]:
    """Groups of the same kind together, full attention before windows, else in order of appearance."""
    together: dict[int | None, list[FullAttention]] = {}
    for group in groups:
        together.setdefault(group.window, []).append(group)
    return sorted(together.values(), key=lambda members: members[0].window is not None)
