"""Block tables: who gets which blocks, and what of them can be found later (vllm/v1/core/kv_cache_manager.py)."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import compress
from operator import and_
from typing import NamedTuple, Protocol

from .block_pool import NULL_BLOCK, BlockPool, CacheListener
from .content import Chains
from .groups import FullAttention, alike, group_managers
from .request import Request
from .settings import SchedulerSettings


class Hit(NamedTuple):
    """What the pool has of a prompt."""

    blocks: list[list[int]]  # by group
    num_tokens: int
    boundary: int  # tokens that some group had, if the others did not; else 0


class Listener(CacheListener, Protocol):
    """Who is told about blocks, in the order of things."""

    def taken(self, request: Request, group: int, blocks: Seq[int]) -> None: ...

    def found(self, request: Request, hit: Hit) -> None: ...

    def stored(self, request: Request, group: int, begin: int, stored: Seq[bool]) -> None: ...

    def released(self, request: Request, group: int, blocks: Seq[int]) -> None: ...


class CacheManager:
    """All groups over one pool; a request gets what all of them need, or nothing."""

    def __init__(self, settings: SchedulerSettings, pool: BlockPool) -> None:
        self.settings = settings
        self.pool = pool
        self._chains = Chains(settings.block_size)
        self.groups = group_managers(self.pool, settings)
        self.listener: Listener | None = None
        self._alike = alike(self.groups)
        self._caches = settings.enable_prefix_caching
        self._max_model_len = settings.max_model_len
        self._no_hit = Hit([[] for _ in self.groups], 0, 0)
        self._has_windows = any(group.window is not None for group in self.groups)
        self._block_size = settings.block_size

    def listen(self, listener: Listener) -> None:
        """Tell `listener` from now on."""
        self.listener = self.pool.listener = listener

    def find(self, request: Request) -> Hit:
        """The longest prefix of its known tokens but the last one that is in the pool for every group."""
        if not self._caches:
            return self._no_hit
        if not request.numbers:
            request.numbers = self._chains.numbers(request.spans)
        num_blocks = (request.known - 1) // self._block_size
        if len(self.groups) == 1:
            group = self.groups[0]
            hits = group.longest_hit([group.keys(request, 0, num_blocks)])
            return Hit(hits, len(hits[0]) * self._block_size, 0)
        return self._find_in_all(request, num_blocks)

    def _find_in_all(self, request: Request, num_blocks: int) -> Hit:
        # Each kind may shorten what the others have, until all have the same; vLLM spares the second round if there
        # are two kinds, one of full attention.
        longest = 0
        once = len(self._alike) == 2 and self._alike[0][0].window is None
        hits: list[list[int]] = [[] for _ in self.groups]
        has_full = False
        while True:
            shortest = num_blocks
            for members in self._alike:
                first = members[0]
                if first.window is None and has_full:
                    shortest = min(shortest, len(hits[first.number]))
                    continue
                has_full |= first.window is None
                found = first.longest_hit([group.keys(request, 0, shortest) for group in members])
                for group, hit in zip(members, found, strict=True):
                    hits[group.number] = hit
                shortest = len(found[0])
                longest = max(longest, shortest)
            if shortest == num_blocks or once:
                break
            num_blocks = shortest
        for hit in hits:
            del hit[shortest:]
        num_tokens = shortest * self._block_size
        return Hit(hits, num_tokens, longest * self._block_size if longest > shortest else 0)

    def admit(self, request: Request, hit: Hit, num_tokens: int, beside_others: bool) -> bool:
        """Room for the tokens found and `num_tokens` behind them. False, and no change, if there is none."""
        settings, free = self.settings, len(self.pool.free)
        if beside_others:
            free -= settings.watermark_blocks
        known = min(request.known, self._max_model_len)
        if settings.scheduler_reserve_full_isl and self._num_missing(hit, known, True) > free:
            return False
        num_tokens = min(hit.num_tokens + num_tokens, self._max_model_len)
        if self._num_missing(hit, num_tokens, False) > free:
            return False
        request.tables = []
        for group, blocks in zip(self.groups, hit.blocks, strict=True):
            skipped = group.num_skipped_blocks(hit.num_tokens)
            self.pool.touch(blocks[skipped:])
            request.tables.append([NULL_BLOCK] * skipped + blocks[skipped:])
        num_found = request.num_stored = len(request.tables[0])
        if self.listener is not None and num_found:
            self.listener.found(request, hit)
        self._take(request, -(-num_tokens // self._block_size) - num_found)
        if self._caches:
            self.store(request, min(num_tokens, request.known))
        return True

    def _num_missing(self, hit: Hit, num_tokens: int, whole: bool) -> int:
        """Blocks that leave the free queue if the first `num_tokens` tokens get room."""
        num_missing = 0
        for group, blocks in zip(self.groups, hit.blocks, strict=True):
            needed = -(-num_tokens // self._block_size)
            if whole and group.max_admission_blocks is not None:
                needed = min(needed, group.max_admission_blocks)
            skipped = group.num_skipped_blocks(hit.num_tokens)
            num_missing += max(0, needed - max(skipped, len(blocks)))
            num_missing += self.pool.num_free_of(blocks[skipped:])
        return num_missing

    def extend(self, request: Request, num_tokens: int) -> bool:
        """Room for `num_tokens` more tokens. False if there is none; windows may have given blocks back even so."""
        if self._has_windows:
            self._release_skipped(request, max(0, request.computed - request.in_flight))
        num_tokens = min(request.computed + num_tokens, self._max_model_len)
        # All tables of a request have the same length.
        num_missing = -(-num_tokens // self._block_size) - len(request.tables[0])
        if num_missing > 0:
            if num_missing * len(self.groups) > len(self.pool.free):
                return False
            self._take(request, num_missing)
        if self._caches:
            self.store(request, min(num_tokens, request.known))
        return True

    def _release_skipped(self, request: Request, num_tokens: int) -> None:
        for group in self.groups:
            blocks = group.take_skipped(request, num_tokens)
            if blocks:
                self._release(request, group, blocks)

    def _take(self, request: Request, num_missing: int) -> None:
        for number, table in enumerate(request.tables):
            blocks = self.pool.take(num_missing)
            table += blocks
            if self.listener is not None:
                self.listener.taken(request, number, blocks)

    def store(self, request: Request, num_tokens: int) -> None:
        """Full blocks among the first `num_tokens` tokens can be found from now on."""
        begin, end = request.num_stored, num_tokens // self._block_size
        if begin < end:
            request.num_stored = end
            for group in self.groups:
                self._store(request, group, begin, end)

    def _store(self, request: Request, group: FullAttention, begin: int, end: int) -> None:
        pool, blocks = self.pool, request.tables[group.number][begin:end]
        stored = [block != NULL_BLOCK for block in blocks]
        kept = group.is_kept(request, begin, end)
        if kept is not None:
            stored = list(map(and_, stored, kept))
        for block in compress(zip(blocks, group.keys(request, begin, end), strict=True), stored):
            pool.store(*block)
        if self.listener is not None:
            self.listener.stored(request, group.number, begin, stored)

    def free(self, request: Request) -> None:
        """Take everything back, group by group, the end of each table first."""
        for group, table in zip(self.groups, request.tables, strict=True):
            self._release(request, group, table[::-1])
        request.tables = []

    def _release(self, request: Request, group: FullAttention, blocks: Seq[int]) -> None:
        self.pool.release(blocks)
        if self.listener is not None:
            self.listener.released(request, group.number, blocks)
