"""Moves of one call that end in the same block happen one after the other."""

import pytest
import torch

from kvtwin.gpu.arguments import SwapMove, allocate_host_pool
from kvtwin.gpu.kernels import swap_blocks
from kvtwin.gpu.tools.guard import MemoryGuard


@pytest.mark.parametrize("host_blocks", [(0, 1), (1, 0), (0, 1, 0)], ids=str)
def test_swap_blocks_into_one_block_leaves_the_last(host_blocks: tuple[int, ...]) -> None:
    """In one launch two programs would write the block, and chance would choose: the guard sees it."""
    k_pool, v_pool = torch.zeros(2, 3, 4, 2, 16)
    host_pool = allocate_host_pool(k_pool, 2)
    host_pool.copy_(torch.randn(host_pool.shape, generator=torch.Generator().manual_seed(1)))
    with MemoryGuard():
        swap_blocks(k_pool, v_pool, host_pool, [SwapMove(False, 2, host) for host in host_blocks])
    assert torch.equal(k_pool[2], host_pool[host_blocks[-1], 0])
    assert torch.equal(v_pool[2], host_pool[host_blocks[-1], 1])
