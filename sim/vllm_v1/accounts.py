"""Whose slots they are, counted from tables and reference counts as blocks change hands."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from ..decisions import Decisions
from ..ledger import Ledger
from ..sequence import NEVER
from .block_pool import BlockPool
from .cache_manager import Hit
from .request import Request


class TracedRequest(Request):
    """A request of a trace, with what the recorder has to remember of it."""

    __slots__ = ("last_token_ns", "lost", "tail")

    last_token_ns: int  # when the last token came out, kept across a preemption
    lost: int  # tokens that were computed when it was preempted
    tail: int  # slots behind its end, which it will never fill


class Accounts:
    """Collects what changes within a plan or an update, and tells the ledger.

    A block that several tables hold counts once. The null block is granted and asked for by nobody.
    """

    def __init__(
        self, ledger: Ledger, pool: BlockPool, block_size: int, log: Decisions | None
    ) -> None:
        self._ledger, self._pool, self._size, self._log = ledger, pool, block_size, log
        self._blocks = self._tail = self._live = 0  # changes since the last `settle`
        ledger.granted += block_size

    def settle(self, now_ns: int) -> None:
        """What has been collected happens now."""
        slots = self._blocks * self._size
        if slots or self._tail:
            self._ledger.change(slots - self._tail, slots, slots, now_ns)
        if self._live:
            self._ledger.commit(self._live, now_ns)
        self._blocks = self._tail = self._live = 0

    def _log_each(self, action: str, request: Request, blocks: Seq[int]) -> None:
        if self._log is not None:
            for block in blocks:
                self._log.add(action, request.row, block, 1)

    def taken(self, request: Request, group: int, blocks: Seq[int]) -> None:
        assert isinstance(request, TracedRequest)
        self._blocks += len(blocks)
        tail = len(request.tables[0]) * self._size - (request.end_tokens - 1)
        if tail > 0:
            self._tail += tail - request.tail
            request.tail = tail
        self._log_each("extend" if request.running else "grant", request, blocks)

    def found(self, request: Request, hit: Hit) -> None:
        references = self._pool.references
        (blocks,) = hit.blocks
        # Those that nobody else holds. The others are live already, or will be when who computes them has.
        num_alone = sum(references[block] == 1 for block in blocks)
        self._blocks += num_alone
        self._live += num_alone * self._size
        self._log_each("share", request, blocks)

    def stored(self, request: Request, group: int, begin: int, stored: Seq[bool]) -> None:
        """Content that can be found changes nobody's slots."""

    def removed(self, key: int) -> None:
        """Nor does content that no longer can; the free queue says what of it is cached."""

    def released(self, request: Request, group: int, blocks: Seq[int]) -> None:
        assert isinstance(request, TracedRequest)
        references, size = self._pool.references, self._size
        num_full, rest = divmod(request.computed, size)
        table = blocks[::-1]
        num_full_freed = sum(not references[block] for block in table[:num_full])
        num_others_freed = sum(not references[block] for block in table[num_full:])
        self._blocks -= num_full_freed + num_others_freed
        self._live -= num_full_freed * size
        if rest and not references[table[num_full]]:
            self._live -= rest
        self._tail -= request.tail
        request.tail = 0
        request.lost = request.computed
        self._log_each("free", request, blocks)


def traced_request(
    row: int, num_prompt_tokens: int, max_tokens: int, max_model_len: int, priority: int
) -> TracedRequest:
    """A request that has just arrived."""
    request = TracedRequest(row, num_prompt_tokens, max_tokens, max_model_len, priority)
    request.last_token_ns = NEVER
    request.lost = request.tail = 0
    return request
