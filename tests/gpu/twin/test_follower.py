"""What is told of sequences that hold nothing any more."""

from types import SimpleNamespace
from typing import Any

import pytest
from twin_cases import SHAPE

from kvtwin.gpu import torch_ops
from kvtwin.gpu.check import Backend
from kvtwin.gpu.twin.follower import DecisionFollower
from kvtwin.gpu.twin.pool import DevicePool
from kvtwin.sim import BlockGroups
from kvtwin.sim.decisions import Decisions


@pytest.mark.parametrize("windows", [(None,), (5,), (None, 5)])
def test_who_has_lost_its_last_block_is_released(windows: tuple[int | None, ...]) -> None:
    """All tables of a request together, and not while one of them has a block."""
    policy: Any = SimpleNamespace(reuses_prefixes=False)
    groups, log = BlockGroups(windows, (1,) * len(windows)), Decisions()
    pool = DevicePool(SHAPE, 32, 4, "cpu")
    backend = Backend("torch", torch_ops, "cpu")
    follower = DecisionFollower(log, policy, groups, pool, backend, lambda *_: None)
    keys = [(1, group) for group in range(len(windows))]
    blocks = [(2 + 2 * group + place, group) for group in range(len(windows)) for place in (0, 1)]
    for block, group in blocks:
        log.add("grant", 1, block, 1, group)
    log.add("grant", 2, 7, 1, 0)
    follower.follow([], {})
    *first, last = blocks
    for block, group in first:
        log.add("free", 1, block, 1, group)
    follower.follow([], {})
    assert follower.released == []
    block, group = last
    log.add("free", 1, block, 1, group)
    follower.follow([], {})
    assert follower.released == keys
