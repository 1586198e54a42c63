"""Which of a model's layers are executed, and which of them share block tables and the pool's tensors."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, islice
from typing import NamedTuple

import torch

from kvtwin.sim import BlockGroups

from .content import ContentShape


class ExecutedLayer(NamedTuple):
    """`group`: whose block tables it uses. `place`: its pool tensor; `window`: what it attends to, 0: everything."""

    group: int
    place: int
    window: int


class StepLayer(NamedTuple):
    """A layer of a step, with the pool of its place: [num_blocks, block_slots, num_kv_heads, head_dim]."""

    k_pool: torch.Tensor
    v_pool: torch.Tensor
    group: int
    window: int


def dealt(groups: BlockGroups, num_layers: int) -> list[int]:
    """Groups of the executed layers, one after the other: each group in turn, as often as it has layers.

    So all layers of a model are as many of each group as it has, and fewer are of each group, as long as they suffice.
    """
    turns = (
        group
        for turn in count()
        for group, num in enumerate(groups.token_slots)
        if turn % groups.block_token_slots < num
    )
    return list(islice(turns, num_layers))


def windows_of(groups: BlockGroups, num_layers: int) -> tuple[int, ...]:
    """What each executed layer of a model with these groups attends to, 0 for everything; empty if all of them do."""
    if not any(groups.windows):
        return ()
    return tuple(groups.windows[group] or 0 for group in dealt(groups, num_layers))


def executed_layers(shape: ContentShape, groups: BlockGroups) -> list[ExecutedLayer]:
    """The layers of `shape` under a policy whose block tables are those of `groups`.

    Layer j of each group has the tensor j of the pool: a block belongs to one group at a time.
    """
    windows = shape.windows or (0,) * shape.num_layers
    if len(groups.windows) == 1:
        return [ExecutedLayer(0, place, window) for place, window in enumerate(windows)]
    assert windows == windows_of(groups, shape.num_layers), (windows, groups)
    num_placed: Counter[int] = Counter()
    layers = []
    for group, window in zip(dealt(groups, shape.num_layers), windows, strict=True):
        layers.append(ExecutedLayer(group, num_placed[group], window))
        num_placed[group] += 1
    return layers


def pool_shape(shape: ContentShape, groups: BlockGroups) -> ContentShape:
    """The same with as many layers as a pool has tensors: those of the largest group."""
    if len(groups.windows) == 1:
        return shape
    return replace(
        shape, num_layers=1 + max(place for _, place, _ in executed_layers(shape, groups))
    )


def step_layers(
    layers: Sequence[ExecutedLayer], pools: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> list[StepLayer]:
    """`pools`: K and V by place."""
    return [StepLayer(*pools[place], group, window) for group, place, window in layers]
