"""Executors with one fault each, as functions that plant it with pytest's monkeypatch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kvtwin.gpu import torch_ops
from kvtwin.gpu.arguments import SwapMove
from kvtwin.gpu.twin import executor as executor_module
from kvtwin.gpu.twin.batch import Batch
from kvtwin.gpu.twin.executor import DeviceExecutor
from kvtwin.gpu.twin.follower import DecisionFollower
from kvtwin.gpu.twin.pool import DevicePool
from kvtwin.gpu.twin.step import StepTensors
from kvtwin.gpu.twin.tables import BlockTables

Patch = pytest.MonkeyPatch


def _change_batches(patch: Patch, change: Callable[[Batch, int], Batch]) -> None:
    make = executor_module.make_batch

    def make_batch(ids: Any, tables: Any, firsts: Any, nums: Any, size: int, num: int) -> Batch:
        return change(make(ids, tables, firsts, nums, size, num), size)

    patch.setattr(executor_module, "make_batch", make_batch)


def _change_tensors(patch: Patch, change: Callable[[StepTensors], StepTensors]) -> None:
    put = executor_module.put_on_device
    patch.setattr(executor_module, "put_on_device", lambda *args: change(put(*args)))


def wrong_slot_mapping(patch: Patch) -> None:
    """The last token of each step goes to the slot of the first one's neighbour."""

    def change(batch: Batch, size: int) -> Batch:
        slots = batch.slots.copy()
        slots[:, -1] = (slots[:, 0] + 1) % 48
        return replace(batch, slots=slots)

    _change_batches(patch, change)


def off_by_one_at_a_block_edge(patch: Patch) -> None:
    """The last token of a block is written to the slot before."""

    def change(batch: Batch, size: int) -> Batch:
        return replace(batch, slots=batch.slots - (batch.slots % size == size - 1))

    _change_batches(patch, change)


def swapped_ids(patch: Patch) -> None:
    """Two blocks of a table have changed places."""
    tables_of = DecisionFollower.tables_of

    def swapped(self: DecisionFollower, *args: Any) -> Any:
        tables = tables_of(self, *args)
        if tables.shape[2] > 1:
            tables[0, 0, [0, 1]] = tables[0, 0, [1, 0]]
        return tables

    patch.setattr(DecisionFollower, "tables_of", swapped)


def read_behind_the_table(patch: Patch) -> None:
    """Contexts are taken to be a block longer than they are."""

    def change(batch: Batch, size: int) -> Batch:
        tables = np.concatenate([batch.tables, batch.tables[:, :, :1]], axis=2)
        return replace(batch, tables=tables, context_lens=batch.context_lens + size)

    _change_batches(patch, change)


def stale_table_row(patch: Patch) -> None:
    """A sequence that is admitted again finds its old blocks in its table."""
    patch.setattr(BlockTables, "remove", lambda *_: None)


def missed_move(patch: Patch) -> None:
    """Runs have moved, but their content has not."""
    patch.setattr(DevicePool, "move", lambda *_: None)


def compaction_overlap(patch: Patch) -> None:
    """Slot by slot from the first one on, also where the target lies above the source."""

    def move(self: DevicePool, source: int, target: int, num: int) -> None:
        by_slot = self.tensor.flatten(2, 3)
        for i in range(num):
            by_slot[:, :, target + i] = by_slot[:, :, source + i]

    patch.setattr(DevicePool, "move", move)


def moves_in_reverse_order(patch: Patch) -> None:
    """The copies of a step are carried out last to first."""
    follow, move = DecisionFollower.follow, DevicePool.move
    waiting: list[Any] = []
    patch.setattr(DevicePool, "move", lambda *args: waiting.append(args))

    def reverse(self: DecisionFollower, *args: Any) -> int:
        ns = follow(self, *args)
        while waiting:
            move(*waiting.pop())
        return ns

    patch.setattr(DecisionFollower, "follow", reverse)


def vacated_too_early(patch: Patch) -> None:
    """The source of a copy is given up before the step has been committed."""
    move = DevicePool.move

    def early(self: DevicePool, source: int, target: int, num: int) -> None:
        move(self, source, target, num)
        if abs(source - target) >= num:
            self.poison([(source, num)])

    patch.setattr(DevicePool, "move", early)


def skipped_poison_at_free(patch: Patch) -> None:
    """What is freed is left as it is."""
    patch.setattr(DecisionFollower, "_poison_what_is_left", lambda self: self._left.clear())


def skipped_poison_everywhere(patch: Patch) -> None:
    """Neither what is freed nor what is granted is cleared."""
    patch.setattr(DecisionFollower, "_clear", lambda *_: None)


def poisoned_cache(patch: Patch) -> None:
    """What is cached is cleared like all that is given back."""
    poison = DecisionFollower._poison_what_is_left

    def all_of_it(self: Any) -> None:
        self._policy, policy = type("Nothing", (), {"reuses_prefixes": False}), self._policy
        poison(self)
        self._policy = policy

    patch.setattr(DecisionFollower, "_poison_what_is_left", all_of_it)


def write_past_the_end(patch: Patch) -> None:
    """Who writes its last token writes one more behind it, where its table has room."""
    execute = DeviceExecutor.execute

    def past(self: Any, plan: Any) -> Any:
        ends_ns = execute(self, plan)
        row, branch, first, num = self.work_log[-1][-1].tolist()
        size, behind = self.memory.pool.block_slots, first + num
        block, offset = divmod(behind, size)
        table = self.memory.tables_of([(row, branch)], np.array([behind]))[0, 0]
        if offset:
            self.memory.pool.tensor[:, :, table[block], offset] = 1.0
        return ends_ns

    patch.setattr(DeviceExecutor, "execute", past)


def keys_for_values(patch: Patch) -> None:
    """K is stored where V belongs, too."""
    _change_tensors(patch, lambda step: replace(step, value=step.key))


def wrong_layer(patch: Patch) -> None:
    """Layers are stored in reverse order."""
    _change_tensors(
        patch, lambda step: replace(step, key=step.key.flip(0), value=step.value.flip(0))
    )


def wrong_head(patch: Patch) -> None:
    """The V of two heads of the last layer has changed places."""

    def change(step: StepTensors) -> StepTensors:
        value = step.value.clone()
        value[-1] = value[-1].flip(1)
        return replace(step, value=value)

    _change_tensors(patch, change)


def wrong_position(patch: Patch) -> None:
    """Every sequence's tokens are those of one position further on."""
    ids_of = DeviceExecutor.ids_of
    patch.setattr(
        DeviceExecutor, "ids_of", lambda self, key, end: ids_of(self, key, end + 1)[1 : end + 1]
    )


def one_wrong_bit(patch: Patch) -> None:
    """The lowest bit of one channel of the last token."""

    def change(step: StepTensors) -> StepTensors:
        value = step.value.clone()
        value.view(torch.int16)[-1, -1, -1, -1] ^= 1
        return replace(step, value=value)

    _change_tensors(patch, change)


def lost_copy_on_write(patch: Patch) -> None:
    """The table names the new block, and nothing has been copied there."""
    patch.setattr(torch_ops, "copy_blocks", lambda *_: None)


def _change_swaps(patch: Patch, change: Callable[[SwapMove], SwapMove]) -> None:
    swap = torch_ops.swap_blocks

    def swap_blocks(k_pool: Any, v_pool: Any, host_pool: Any, moves: list[SwapMove]) -> None:
        swap(k_pool, v_pool, host_pool, [change(move) for move in moves])

    patch.setattr(torch_ops, "swap_blocks", swap_blocks)


def swapped_to_the_wrong_host_block(patch: Patch) -> None:
    """Blocks leave for the place before theirs."""
    _change_swaps(
        patch,
        lambda move: replace(move, host_block=max(0, move.host_block - 1)) if move.is_out else move,
    )


def swapped_from_the_wrong_host_block(patch: Patch) -> None:
    """Blocks come back from the place before theirs."""
    _change_swaps(
        patch,
        lambda move: move if move.is_out else replace(move, host_block=max(0, move.host_block - 1)),
    )


def source_of_a_swap_poisoned(patch: Patch) -> None:
    """A block that is being swapped out is given up before the transfer has ended."""
    swap_out = DecisionFollower._swap_out

    def early(self: Any, key: Any, first: int, num: int, source: int) -> None:
        swap_out(self, key, first, num, source)
        self.pool.poison([(source * self._block_slots, self._block_slots)])

    patch.setattr(DecisionFollower, "_swap_out", early)


def lost_store(patch: Patch) -> None:
    """The last token of each step is not stored."""

    def change(batch: Batch, size: int) -> Batch:
        slots = batch.slots.copy()
        slots[:, -1] = -1
        return replace(batch, slots=slots)

    _change_batches(patch, change)
