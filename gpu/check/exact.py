"""Operations that move bits: every byte of the pool must be as a plain loop leaves it."""

from types import ModuleType

import torch

from ..arguments import SwapMove, allocate_host_pool
from .case import Case
from .inputs import POISON_ENTRY, make_inputs, poisoned_pools

# Which of the pool's blocks are copied where, of 8; a negative id is padding.
COPIED_PAIRS = ((0, 5), (7, 1), (0, 6))
PADDING_PAIRS = ((-1, 3), (4, -1))
NUM_BLOCKS = 8
NUM_HOST_BLOCKS = 4
# Out and back in one call, onto host blocks that are read and written again: order matters.
MOVES = (
    SwapMove(True, 1, 0),
    SwapMove(True, 2, 1),
    SwapMove(False, 6, 0),
    SwapMove(True, 3, 0),
    SwapMove(True, 4, 0),
    SwapMove(False, 7, 1),
    SwapMove(False, 5, 0),
)


def run_store(case: Case, ops: ModuleType, device: str) -> tuple[float, float]:
    """New tokens into a poisoned pool, between rows of padding and before rows without a slot."""
    inputs = make_inputs(case, device)
    num_blocks = inputs.k_pool.shape[0]
    slots = torch.cat(
        [
            table[tokens // case.block_size].long() * case.block_size + tokens % case.block_size
            for table, context_len in zip(inputs.block_tables.cpu(), case.context_lens, strict=True)
            for tokens in [torch.arange(context_len)]
        ]
    )
    order = torch.randperm(len(slots), generator=torch.Generator().manual_seed(1))
    key, value = torch.cat(inputs.keys)[order], torch.cat(inputs.values)[order]
    slots = slots[order]
    if case.num_padding:
        # Padding in front, whose numbers must go nowhere, and rows behind that have no slot.
        padding = torch.full((case.num_padding, *key.shape[1:]), 99.0, dtype=key.dtype)
        key, value = (torch.cat([padding, rows, padding]) for rows in (key, value))
        slots = torch.cat([torch.full((case.num_padding,), -1), slots])
    pools = poisoned_pools(case, num_blocks, device)
    for pool, rows in zip(expected := poisoned_pools(case, num_blocks), (key, value), strict=True):
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                pool[slot // case.block_size, slot % case.block_size] = rows[row]
    ops.store_kv(key.to(device), value.to(device), *pools, slots.to(device), check_slots=True)
    return float(num_differing(pools, expected)), 0.0


def run_copy(case: Case, ops: ModuleType, device: str) -> tuple[float, float]:
    """Blocks onto others, among pairs of padding."""
    expected = full_pools(case, "cpu")
    for pool in expected:
        before = pool.clone()
        for source, target in COPIED_PAIRS:
            pool[target] = before[source]
    pools = full_pools(case, device)
    pairs = torch.tensor([PADDING_PAIRS[0], *COPIED_PAIRS, PADDING_PAIRS[1]], device=device)
    ops.copy_blocks(*pools, pairs, check_pairs=True)
    return float(num_differing(pools, expected)), 0.0


def run_swap(case: Case, ops: ModuleType, device: str) -> tuple[float, float]:
    """Blocks to the host and back, in the order given."""
    expected = full_pools(case, "cpu")
    host: dict[int, list[torch.Tensor]] = {}
    for move in MOVES:
        if move.is_out:
            host[move.host_block] = [pool[move.device_block].clone() for pool in expected]
        else:
            for pool, block in zip(expected, host[move.host_block], strict=True):
                pool[move.device_block] = block
    pools = full_pools(case, device)
    host_pool = allocate_host_pool(pools[0], NUM_HOST_BLOCKS)
    host_pool.fill_(float(POISON_ENTRY % 1000))
    untouched = host_pool[max(host) + 1 :].clone()
    ops.swap_blocks(*pools, host_pool, MOVES)
    if device != "cpu":
        torch.cuda.synchronize()
    wrong = num_differing(pools, expected)
    wrong += sum(
        int((host_pool[block, part] != kept[part]).sum())
        for block, kept in host.items()
        for part in range(2)
    )
    return float(wrong + int((host_pool[max(host) + 1 :] != untouched).sum())), 0.0


def full_pools(case: Case, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Pools of NUM_BLOCKS blocks, all of them random numbers."""
    pools = poisoned_pools(case, NUM_BLOCKS, device)
    generator = torch.Generator().manual_seed(2)
    for pool in pools:
        pool.copy_(torch.randn(pool.shape, generator=generator))
    return pools


def num_differing(
    pools: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]
) -> int:
    """Bytes of the pools' whole storage, gaps and poison included, that are not as expected."""
    return sum(
        int((_storage(pool) != _storage(wanted)).sum())
        for pool, wanted in zip(pools, expected, strict=True)
    )


def _storage(tensor: torch.Tensor) -> torch.Tensor:
    return (
        torch.tensor([], dtype=torch.uint8, device=tensor.device)
        .set_(tensor.untyped_storage())
        .cpu()
    )
