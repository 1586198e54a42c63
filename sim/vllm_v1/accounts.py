"""Whose slots they are, counted from tables and reference counts as blocks change hands."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from ..block_groups import BlockGroups
from ..decisions import Decisions
from ..ledger import Ledger
from ..sequence import NEVER
from .block_pool import NULL_BLOCK, BlockPool
from .cache_manager import Hit
from .request import Request


class TracedRequest(Request):
    """A request of a trace, with what the recorder has to remember of it."""

    __slots__ = ("last_token_ns", "lost", "prefill_tokens")

    last_token_ns: int  # when the last token came out, kept across a preemption
    lost: int  # tokens that were computed when it last gave blocks back
    prefill_tokens: int  # known ones when it was admitted: the prompt, and what it had generated before a preemption


class Accounts:
    """Collects what changes within a plan or an update, and tells the ledger.

    A block that several tables hold counts once, and a token once in each group that keeps it: `groups` says how many
    slots that is. The null block, and what groups with fewer layers leave of their blocks, are granted and asked for by
    nobody.
    """

    def __init__(
        self,
        ledger: Ledger,
        pool: BlockPool,
        block_size: int,
        groups: BlockGroups,
        log: Decisions | None,
    ) -> None:
        self._ledger, self._pool, self._size, self._log = ledger, pool, block_size, log
        self._token_slots = groups.token_slots
        self._block_slots = block_size * groups.block_token_slots
        # Changes since the last `settle`: blocks, and slots.
        self._blocks = self._asked = self._tail = self._live = 0
        ledger.granted += self._block_slots

    def settle(self, now_ns: int) -> None:
        """What has been collected happens now."""
        # As many blocks may come as go, of groups whose tokens take more or fewer slots.
        if self._blocks or self._asked or self._tail:
            granted = self._blocks * self._block_slots
            self._ledger.change(self._asked - self._tail, self._asked, granted, now_ns)
        if self._live:
            self._ledger.commit(self._live, now_ns)
        self._blocks = self._asked = self._tail = self._live = 0

    def _count(self, group: int, num_blocks: int) -> None:
        self._blocks += num_blocks
        self._asked += num_blocks * self._size * self._token_slots[group]

    def _count_tail(self, request: Request, group: int, num_blocks: int, sign: int) -> None:
        """Slots of its first blocks behind its end, which it will never fill."""
        tail = num_blocks * self._size - (request.end_tokens - 1)
        if tail > 0:
            self._tail += sign * tail * self._token_slots[group]

    def _log_each(self, action: str, request: Request, group: int, blocks: Seq[int]) -> None:
        if self._log is not None:
            for block in blocks:
                if block != NULL_BLOCK:
                    self._log.add(action, request.row, block, 1, group)

    def taken(self, request: Request, group: int, blocks: Seq[int]) -> None:
        num_blocks = len(request.tables[group])
        self._count(group, len(blocks))
        self._count_tail(request, group, num_blocks - len(blocks), -1)
        self._count_tail(request, group, num_blocks, 1)
        self._log_each("extend" if request.running else "grant", request, group, blocks)

    def found(self, request: Request, hit: Hit) -> None:
        references = self._pool.references
        for group, table in enumerate(request.tables):
            # Those that nobody else holds. The others are live already, or will be when who computes them has.
            num_alone = sum(references[block] == 1 for block in table if block != NULL_BLOCK)
            self._count(group, num_alone)
            self._live += num_alone * self._size * self._token_slots[group]
            num_skipped = table.count(NULL_BLOCK)
            if self._log is not None and num_skipped:
                self._log.add("skip", request.row, NULL_BLOCK, num_skipped, group)
            self._log_each("share", request, group, table)

    def stored(self, request: Request, group: int, begin: int, stored: Seq[bool]) -> None:
        """Content that can be found changes nobody's slots."""

    def removed(self, key: int) -> None:
        """Nor does content that no longer can; the free queue says what of it is cached."""

    def released(self, request: Request, group: int, blocks: Seq[int]) -> None:
        """All of a table, or full ones that are out of sight."""
        assert isinstance(request, TracedRequest)
        references, token_slots = self._pool.references, self._token_slots[group]
        num_full, rest = divmod(request.computed, self._size)
        table = blocks[::-1]
        full, others = table[:num_full], table[num_full:]
        num_full_freed, num_others_freed = (
            sum(not references[block] for block in part if block != NULL_BLOCK)
            for part in (full, others)
        )
        self._count(group, -num_full_freed - num_others_freed)
        self._live -= num_full_freed * self._size * token_slots
        if rest and others and not references[others[0]]:
            self._live -= rest * token_slots
        self._count_tail(request, group, len(table), -1)
        request.lost = request.computed
        self._log_each("free", request, group, blocks)


def traced_request(
    row: int, num_prompt_tokens: int, max_tokens: int, max_model_len: int, priority: int
) -> TracedRequest:
    """A request that has just arrived."""
    request = TracedRequest(row, num_prompt_tokens, max_tokens, max_model_len, priority)
    request.last_token_ns = NEVER
    request.lost = request.prefill_tokens = 0
    return request
