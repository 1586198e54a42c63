"""What layers of one kind need of the pool (vllm/v1/core/single_type_kv_cache_manager.py)."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from .block_pool import NULL_BLOCK, BlockPool
from .request import Request
from .settings import Group, SchedulerSettings


class FullAttention:
    """One group whose layers read everything: its table keeps every block until the request ends."""

    kind = "full_attention"
    window: int | None = None

    def __init__(
        self, number: int, group: Group, pool: BlockPool, settings: SchedulerSettings
    ) -> None:
        self.number = number
        self.spec = group
        self.block_size = group.block_size
        self.max_admission_blocks: int | None = None  # most blocks that the whole-sequence test counts
        self._pool = pool
        self._num_groups = len(settings.groups)
        self._alignment = settings.alignment
        # Of the hashes that end at multiples of a common divisor, those at the ends of our blocks are ours.
        self._scale = group.block_size // settings.hash_block_size

    def key(self, request: Request, index: int) -> int:
        """Under which block `index` of the request is found."""
        numbers, scale = request.numbers, self._scale
        return numbers[(index + 1) * scale - 1] * self._num_groups + self.number

    def keys(self, request: Request, num_blocks: int) -> list[int]:
        """Those of the first blocks of a request."""
        numbers = request.numbers[self._scale - 1 : num_blocks * self._scale : self._scale]
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

    def longest_hit(self, requests_keys: Seq[Seq[int]]) -> list[list[int]]:
        """Blocks of the longest prefix that is found, by row of keys; all rows must have it. Rows are groups."""
        find = self._pool.by_key.get
        if len(requests_keys) == 1:
            hit = []
            for key in requests_keys[0]:
                found = find(key)
                if found is None:
                    break
                hit.append(found if isinstance(found, int) else next(iter(found)))
            return [hit]
        return self._joint_hit(requests_keys)

    def _joint_hit(self, rows: Seq[Seq[int]]) -> list[list[int]]:
        hits: list[list[int]] = [[] for _ in rows]
        for keys in zip(*rows, strict=True):
            blocks = [self._pool.find(key) for key in keys]
            if NULL_BLOCK in blocks:
                break
            for hit, block in zip(hits, blocks, strict=True):
                hit.append(block)
        return hits


class SlidingWindow(FullAttention):
    """One group whose layers read the last `window` tokens: null blocks stand for what is out of sight."""

    kind = "sliding_window"

    def __init__(
        self, number: int, group: Group, pool: BlockPool, settings: SchedulerSettings
    ) -> None:
        super().__init__(number, group, pool, settings)
        assert group.window is not None, f"group {number} has no window"
        self.window: int = group.window
        # Blocks that a position needs of the past.
        self.num_needed = -(-(self.window - 1) // self.block_size)
        in_sight = min(self.window - 1 + settings.max_in_flight_tokens, settings.max_model_len)
        self.max_admission_blocks = -(-in_sight // self.block_size) + 1
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
        # A hit needs `num_needed` blocks in a row that end at a multiple of the alignment.
        segment_tokens = self._alignment if self._retention is None else self._retention
        per_segment = segment_tokens // self.block_size
        needed = self.num_needed
        if per_segment and needed >= per_segment:
            return None
        kept = [False] * (end - begin)
        if per_segment:
            for index in range(begin, end):
                kept[index - begin] = index % per_segment >= per_segment - needed
        if self._retention is not None:
            # Where a later prompt can resume: before the last token of the same prompt, and where this one could not.
            for tokens in (request.num_prompt_tokens - 1, request.boundary):
                stop = tokens // self._alignment * self._alignment // self.block_size
                for index in range(max(begin, stop - needed), min(end, stop)):
                    kept[index - begin] = True
        return kept

    def longest_hit(self, requests_keys: Seq[Seq[int]]) -> list[list[int]]:
        rows, find = requests_keys, self._pool.find
        num_blocks, num_found = len(rows[0]), 0
        hits = [[NULL_BLOCK] * num_blocks for _ in rows]
        for index in range(num_blocks - 1, -1, -1):
            blocks = [find(keys[index]) for keys in rows]
            if NULL_BLOCK in blocks:
                num_found = 0
                continue
            if not num_found and (index + 1) * self.block_size % self._alignment:
                continue
            for hit, block in zip(hits, blocks, strict=True):
                hit[index] = block
            num_found += 1
            if num_found >= self.num_needed:
                return [hit[: index + num_found] for hit in hits]
        # What begins with the first token needs nothing of the past.
        while num_found * self.block_size % self._alignment:
            num_found -= 1
        return [hit[:num_found] for hit in hits]


def group_managers(pool: BlockPool, settings: SchedulerSettings) -> list[FullAttention]:
    """One for each group of the settings."""
    return [
        (FullAttention if group.window is None else SlidingWindow)(number, group, pool, settings)
        for number, group in enumerate(settings.groups)
    ]


def alike(groups: Iterable[FullAttention]) -> list[list[FullAttention]]:
    """Groups of the same kind together, full attention before windows, else in order of appearance."""
    together: dict[Group, list[FullAttention]] = {}
    for group in groups:
        together.setdefault(group.spec, []).append(group)
    return sorted(together.values(), key=lambda members: members[0].window is not None)
