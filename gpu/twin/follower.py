"""Carries out what the memory manager decided, in its order: tables, copies, and poison where content ends."""

from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any

import numpy as np
import torch

from kvtwin.sim import Allocator, BlockGroups, Policy
from kvtwin.sim.decisions import Decisions

from ..arguments.swaps import SwapMove
from ..check import Backend
from .batch import Batch, Int32, Int64
from .clock import timed_ns
from .group_tables import GroupTables
from .log_gaps import unlogged_grant
from .pool import DevicePool, HostPool
from .tables import BlockTables, Key, table_key

Inherit = Callable[[Key, Key, int, int], None]  # (sequence, ancestor, first position, end)


class DecisionFollower:
    """The device's side of a decision log. It reads the log, and of the policy what is cached.

    A slot holds poison from the start. It is written by the steps of whoever it is granted to, and
    poisoned again when the last table that has it lets it go, unless it stays cached; then when it
    is granted anew. Only slots that were written are ever poisoned, so that costs nothing else.
    """

    def __init__(
        self,
        log: Decisions,
        policy: Policy,
        groups: BlockGroups,
        pool: DevicePool,
        backend: Backend,
        inherit: Inherit,
    ) -> None:
        """`groups`: of layers, that have tables of their own; `pool` has a token in one slot of its block, whatever
        the policy's unit. `inherit`: told when a sequence shares what another one of its request has computed.
        `tables_of` raises UserError where the log of an `Allocator` has nothing for a sequence. Whatever else is wrong
        in a log is for the audit to find.
        """
        self.pool = pool
        self.released: list[
            Key
        ] = []  # sequences that have lost all they held; the reader empties it
        self._tables = BlockTables() if groups.has_one_table else GroupTables()
        self._num_groups = len(groups.windows)
        self._token_slots = groups.block_token_slots
        self._log, self._policy, self._inherit = log, policy, inherit
        self._ops, self._device = backend.ops, backend.device
        self._num_computed: dict[Key, int] = {}  # positions with KV
        self._block_slots = pool.block_slots
        self._host = HostPool(pool)
        self._shared: set[Key] = (
            set()
        )  # sequences that hold what others wrote, and have not computed since
        self._num_followed = 0
        self._written = np.zeros(pool.num_slots, dtype=bool)
        self._num_tables = np.zeros(pool.num_slots // pool.block_slots, dtype=np.int64)
        self._left: list[tuple[int, int]] = []  # runs of blocks that may hold nobody's content now
        self._to_poison: list[tuple[int, int]] = []
        self._copy_ns = 0
        self._firsts: Mapping[Key, int] = {}
        self._do: dict[str, Callable[[Key, int, int, int], None]] = {
            "grant": self._grant,
            "extend": self._extend,
            "share": self._share,
            "skip": self._skip,
            "free": self._free,
            "move": self._move,
            "vacate": self._vacate,
            "vacate_host": lambda *_: None,
            "copy": self._copy,
            "swap_out": self._swap_out,
            "swap_in": self._swap_in,
        }

    @property
    def host_layers(self) -> list[torch.Tensor]:
        """What is swapped out, by layer: [num_host_blocks, 2, block_slots, num_kv_heads, head_dim]."""
        return self._host.layers

    def stored(self, keys: list[Key], batch: Batch) -> None:
        """A step has stored the KV of the batch."""
        self._written[batch.slots] = True
        self._num_computed.update(zip(keys, batch.context_lens.tolist(), strict=True))

    def unwritten(
        self, keys: list[Key], batch: Batch, firsts: Int64
    ) -> list[tuple[Key, int, Int64]]:
        """Positions in front of what a sequence computes that nobody has written, nor will in this step, by group.

        Only of sequences that have just been given what others wrote; vLLM V1 by priority can give
        what was never computed (docs/vllm_v1.md).
        """
        found: list[tuple[Key, int, Int64]] = []
        for (place, key), group in product(enumerate(keys), range(self._num_groups)):
            table = table_key(key, group)
            if table not in self._shared:
                continue
            self._shared.discard(table)
            is_held = np.repeat(self._tables.is_held(table), self._block_slots)[: firsts[place]]
            positions = np.flatnonzero(is_held)
            slots = self.slots_of(key, group, positions)
            missing = positions[~self._written[slots] & ~np.isin(slots, batch.slots[group])]
            if len(missing):
                found.append((key, group, missing))
        return found

    def slots_of(self, key: Key, group: int, positions: Int64) -> Int64:
        """Slots of positions of a sequence."""
        blocks, offsets = np.divmod(positions, self._block_slots)
        ids = self._tables.of(table_key(key, group))[blocks]
        return ids.astype(np.int64) * self._block_slots + offsets

    def tables_of(self, keys: list[Key], context_lens: Int64) -> Int32:
        """Block tables for these contexts: [num_groups, num_seqs, max_blocks]."""
        needed = -(-context_lens // self._block_slots)
        if isinstance(self._policy, Allocator):
            for key, num in zip(keys, needed.tolist(), strict=True):
                if num and not len(self._tables.of(key)):
                    raise unlogged_grant(self._policy, key, num)
        num_blocks = int(needed.max(initial=0))
        return np.stack(
            [
                self._tables.rows([table_key(key, group) for key in keys], num_blocks)
                for group in range(self._num_groups)
            ]
        )

    def follow(self, holders: Iterable[Any], firsts: Mapping[Key, int]) -> int:
        """Catch up with the log. Returns the nanoseconds that copies took.

        `holders`: the sequences that hold slots now. `firsts`: positions from which on sequences
        compute in this step; what is in front of them is there already.
        """
        log, self._copy_ns, self._firsts = self._log, 0, firsts
        moved: list[tuple[Key, tuple[int, int]]] = []
        for at in range(self._num_followed, len(log.steps)):
            key = (log.rows[at], log.branches[at])
            action, first, num = log.actions[at], log.firsts[at], log.nums[at]
            if action == "move":
                ids = self._tables.of(key)
                moved.append((key, (int(ids[0]), len(ids))))
            self._do[action](key, first, num, log.sources[at])
        self._num_followed = len(log.steps)
        for key in self._tables.end():
            self._forget(key)
        if moved:
            # Until the step commits a single move keeps its source; what compaction has left is free.
            runs = {(seq.row, getattr(seq, "branch", 0)): self._policy.runs(seq) for seq in holders}
            for key, (first, num) in moved:
                is_here = first in self._tables.of(key)[:1]  # pushed away and back
                if (first, num) in runs.get(key, ()) and not is_here:
                    self._num_tables[first : first + num] += 1
                else:
                    self._left.append((first, num))
        self._poison_what_is_left()
        self._flush()
        return self._copy_ns

    def _slots(self, first: int, num: int) -> slice:
        return slice(first * self._block_slots, (first + num) * self._block_slots)

    def _grant(self, key: Key, first: int, num: int, source: int) -> None:
        self._tables.begin(key[0])
        self._extend(key, first, num, source)

    def _extend(self, key: Key, first: int, num: int, source: int) -> None:
        begin = len(self._tables.of(key)) * self._block_slots
        self._tables.append(key, first, num)
        self._num_tables[first : first + num] += 1
        slots = self._slots(first, num)
        num_found = min(max(self._firsts.get(key, 0) - begin, 0), num * self._block_slots)
        self._clear(slots.start + num_found, slots.stop)

    def _skip(self, key: Key, first: int, num: int, source: int) -> None:
        assert isinstance(self._tables, GroupTables), f"{key} has a block everywhere"
        self._tables.begin(key[0])
        self._tables.skip(key, num)

    def _share(self, key: Key, first: int, num: int, source: int) -> None:
        self._tables.begin(key[0])
        for other in self._tables.of_request(key[0]):
            (places,) = np.nonzero(self._tables.of(other) == first)
            if len(places):
                begin = int(places[0]) * self._block_slots
                end = begin + num * self._block_slots
                self._inherit(key, other, begin, min(end, self._num_computed.get(other, 0)))
                break
        self._tables.append(key, first, num)
        self._num_tables[first : first + num] += 1
        self._shared.add(key)

    def _free(self, key: Key, first: int, num: int, source: int) -> None:
        self._tables.remove(key, first, num)
        self._num_tables[first : first + num] -= 1
        self._left.append((first, num))
        if key not in self._tables:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        """It holds nothing any more."""
        self._num_computed.pop(key, None)
        self._shared.discard(key)
        self.released.append(key)

    def _move(self, key: Key, first: int, num: int, source: int) -> None:
        ids = self._tables.of(key)
        old_first, old_num = int(ids[0]), len(ids)
        self._num_tables[old_first : old_first + old_num] -= 1
        self._num_tables[first : first + num] += 1
        self._tables.remove(key, old_first, old_num)
        self._tables.append(key, first, num)
        old, new = self._slots(old_first, old_num), self._slots(first, num)
        self._clear(new.start + old.stop - old.start, new.stop)
        self._timed(lambda: self.pool.move(old.start, new.start, old.stop - old.start))
        self._written[new.start : new.start + old.stop - old.start] = self._written[old].copy()

    def _vacate(self, key: Key, first: int, num: int, source: int) -> None:
        self._num_tables[first : first + num] -= 1
        self._left.append((first, num))

    def _copy(self, key: Key, first: int, num: int, source: int) -> None:
        self._tables.replace(key, source, first)
        self._num_tables[first] += 1
        self._num_tables[source] -= 1
        pairs = torch.tensor([[source, first]], dtype=torch.int64, device=self._device)
        self._timed(lambda: [self._ops.copy_blocks(k, v, pairs) for k, v in self.pool.layers])
        self._written[self._slots(first, 1)] = self._written[self._slots(source, 1)]

    def _swap_out(self, key: Key, first: int, num: int, source: int) -> None:
        """To host block `first`. Tables of the request name it as a negative number from now on."""
        self._host.reserve(first + 1)
        self._swap(SwapMove(is_out=True, device_block=source, host_block=first))
        # Until the transfer has ended, the source is held.
        self._num_tables[source] -= self._tables.replace_in_request(key[0], source, ~first) - 1

    def _swap_in(self, key: Key, first: int, num: int, source: int) -> None:
        self._num_tables[first] += self._tables.replace_in_request(key[0], ~source, first)
        self._swap(SwapMove(is_out=False, device_block=first, host_block=source))
        self._written[self._slots(first, 1)] = True

    def _swap(self, move: SwapMove) -> None:
        layers = zip(self.pool.layers, self._host.layers, strict=True)
        self._timed(lambda: [self._ops.swap_blocks(k, v, host, [move]) for (k, v), host in layers])

    def _timed(self, copy: Callable[[], object]) -> None:
        self._flush()
        self._copy_ns += timed_ns(copy, self._device)

    def _poison_what_is_left(self) -> None:
        left, self._left = self._left, []
        if not left:
            return
        cached = np.zeros(self.pool.num_slots, dtype=bool)
        if self._policy.reuses_prefixes:
            for first, num in self._policy.cached_runs():
                first, num = first // self._token_slots, num // self._token_slots
                cached[first : first + num] = True
        for first, num in left:
            slots = self._slots(first, num)
            nobodys = np.repeat(self._num_tables[first : first + num] == 0, self._block_slots)
            for run in _runs_of(nobodys & ~cached[slots]):
                self._clear(slots.start + run[0], slots.start + run[1])

    def _clear(self, first_slot: int, end_slot: int) -> None:
        """Poison what was written of these slots, soon."""
        written = self._written[first_slot:end_slot]
        if written.any():
            self._to_poison += [
                (first_slot + first, end - first) for first, end in _runs_of(written)
            ]
            written[:] = False

    def _flush(self) -> None:
        if self._to_poison:
            self.pool.poison(self._to_poison)
            self._to_poison = []


def _runs_of(mask: np.ndarray) -> list[tuple[int, int]]:
    """Half-open (begin, end) of the runs of True."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
