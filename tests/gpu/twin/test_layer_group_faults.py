"""Each fault in what groups of layers need is planted alone, and shows in what it should show in."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from twin_cases import config_of, grouped, make_trace

from kvtwin.gpu.twin import executor
from kvtwin.gpu.twin.backend import open_backend
from kvtwin.gpu.twin.batch import Batch
from kvtwin.gpu.twin.follower import DecisionFollower
from kvtwin.gpu.twin.foresight import foresee
from kvtwin.gpu.twin.group_tables import GroupTables
from kvtwin.gpu.twin.layers import ExecutedLayer
from kvtwin.gpu.twin.tables import BlockTables
from kvtwin.gpu.twin.validate import Depth, validate_decisions
from kvtwin.sim import BlockGroups
from kvtwin.sim.decisions import Decisions
from kvtwin.sim.drive import drive
from kvtwin.sim.vllm_v1.accounts import Accounts
from kvtwin.sim.vllm_v1.groups import SlidingWindow

Patch = pytest.MonkeyPatch
# Two layers with everything, and one with a window of 6 whose group leaves the second place of a block empty.
GROUPS = BlockGroups((None, 6), (2, 1))


def no_fault(patch: Patch) -> None:
    """Nothing."""


def closed_up(patch: Patch) -> None:
    """A table forgets that blocks in front of the window were freed."""
    patch.setattr(GroupTables, "remove", BlockTables.remove)


def _change_layers(patch: Patch, change: Callable[[ExecutedLayer], ExecutedLayer]) -> None:
    layers = executor.executed_layers
    patch.setattr(executor, "executed_layers", lambda *args: [change(one) for one in layers(*args)])


def window_too_long(patch: Patch) -> None:
    """Attention sees one token more."""
    _change_layers(patch, lambda one: one._replace(window=one.window and one.window + 1))


def window_too_short(patch: Patch) -> None:
    """Attention sees one token less."""
    _change_layers(patch, lambda one: one._replace(window=one.window and one.window - 1))


def place_of_another_layer(patch: Patch) -> None:
    """The layer of the smaller group is stored in the place that it leaves empty."""
    _change_layers(patch, lambda one: one._replace(place=one.place or one.group))


def freed_too_early(patch: Patch) -> None:
    """The manager gives a block back one step before it is out of sight."""
    skipped = SlidingWindow.num_skipped_blocks
    patch.setattr(SlidingWindow, "num_skipped_blocks", lambda self, num: skipped(self, num + 1))


def poisoned_too_early(patch: Patch) -> None:
    """The device poisons the oldest block that is in sight."""
    stored = DecisionFollower.tables_of

    def early(self: DecisionFollower, keys: Any, context_lens: Any) -> Any:
        tables = stored(self, keys, context_lens)
        for table, context_len in zip(tables[1], context_lens.tolist(), strict=True):
            if context_len > 8:
                block = int(table[(context_len - 6) // 4])
                self.pool.poison([(4 * block, 4)])
        return tables

    patch.setattr(DecisionFollower, "tables_of", early)


def stored_through_another_table(patch: Patch) -> None:
    """K and V of each group go to the slots of the other."""
    make = executor.make_batch

    def change(*args: Any) -> Batch:
        batch = make(*args)
        return replace(batch, slots=np.ascontiguousarray(batch.slots[::-1]))

    patch.setattr(executor, "make_batch", change)


def hit_one_block_too_far_in_front(patch: Patch) -> None:
    """The log skips one block less than the table does."""
    add = Decisions.add

    def less(self: Decisions, action: str, row: int, first: int, num: int, *rest: int) -> None:
        if action != "skip" or num > 1:
            add(self, action, row, first, num - (action == "skip"), *rest)

    patch.setattr(Decisions, "add", less)


def left_as_it_is(patch: Patch) -> None:
    """What is freed behind a window is not poisoned."""
    patch.setattr(DecisionFollower, "_poison_what_is_left", lambda self: self._left.clear())


def counted_as_the_other_group(patch: Patch) -> None:
    """The recorder takes all blocks for those of the larger group."""
    count = Accounts._count
    patch.setattr(Accounts, "_count", lambda self, group, num: count(self, 0, num))


# What is not where it should be is not counted where it should be, either.
ALL = {"findings", "counts that differ", "outputs with NaN", "largest error"}


@pytest.mark.parametrize(
    ("fault", "policy", "failed", "line"),
    [
        (no_fault, "vllm-v1", set(), ""),
        (
            closed_up,
            "vllm-v1",
            ALL,
            r"table: entry \d+ of request \d+ group 1: expected \d+, found \d+",
        ),
        (
            window_too_long,
            "vllm-v1-no-caching",
            {"outputs with NaN", "largest error"},
            r"layer [01], attention|: NaN",
        ),
        (window_too_short, "vllm-v1", {"largest error"}, "layer 1: attention is"),
        (
            place_of_another_layer,
            "vllm-v1",
            {"findings", "counts that differ"},
            r"found layer 0 key: poison; .*layer 1 key: K of layer 0 of request \d+ group 1",
        ),
        (
            freed_too_early,
            "vllm-v1-no-caching",
            {"findings", "outputs with NaN", "largest error"},
            r"sight: position \d+ of request \d+ group 1: expected a unit, found none",
        ),
        (
            poisoned_too_early,
            "vllm-v1-no-caching",
            ALL,
            r"live: slot \d+: expected request \d+ group 1 position \d+, found poison",
        ),
        (
            stored_through_another_table,
            "vllm-v1",
            ALL,
            r"live: slot \d+: expected (request \d+) position (\d+), found \1 group 1 position \2",
        ),
        (
            hit_one_block_too_far_in_front,
            "vllm-v1",
            {*ALL, "found in the pool, never written"},
            r"live: slot \d+: expected request \d+ group 1 position \d+, found request",
        ),
        (left_as_it_is, "vllm-v1-no-caching", {"findings"}, "freed: .* expected poison, found req"),
        (
            counted_as_the_other_group,
            "vllm-v1-no-caching",
            {"counts that differ"},
            r"rounding: expected 8 slots .*, found \d\d",
        ),
    ],
)
def test_a_fault_shows(
    fault: Callable[[Patch], None],
    policy: str,
    failed: set[str],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = grouped(monkeypatch, GROUPS, 3)
    fault(monkeypatch)
    config = config_of(policy, block_size=4, num_gpu_blocks_override=60, async_scheduling=False)
    foresight = foresee(make_trace(2, 8, content=True), config, drive)
    assert ("skip" in foresight.log.actions) == (policy == "vllm-v1")
    with open_backend("cpu", "torch") as backend:
        found, _, _ = validate_decisions(foresight, shape, backend, Depth(1, 2, 2), paranoid=False)
    names = {prediction.name for prediction in found.predictions if prediction.passed is False}
    assert names == failed, found.findings[:5]
    assert not failed or any(re.search(line, text) for text in found.findings), found.findings[:9]
