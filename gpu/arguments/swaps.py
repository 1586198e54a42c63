"""Blocks on their way between the device's pool and host memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral

import torch

from ..errors import KernelInputError


@dataclass(frozen=True)
class SwapMove:
    """One block: to the host (`is_out`) or back."""

    is_out: bool
    device_block: int
    host_block: int


def allocate_host_pool(k_pool: torch.Tensor, num_host_blocks: int) -> torch.Tensor:
    """Host memory [num_host_blocks, 2 (K, V), block_size, num_kv_heads, head_dim].

    Pinned if the pool is on a GPU, so that transfers need no copy on the way. Raises
    KernelInputError for a number of blocks that is none.
    """
    if not isinstance(num_host_blocks, Integral) or num_host_blocks < 0:
        raise KernelInputError(
            f"num_host_blocks is {num_host_blocks}; it must be an integer of 0 or more"
        )
    shape = (num_host_blocks, 2, *k_pool.shape[1:])
    return torch.empty(shape, dtype=k_pool.dtype, pin_memory=k_pool.is_cuda)


def batches(moves: Sequence[SwapMove]) -> Iterator[list[SwapMove]]:
    """Runs of moves that may happen in any order: one direction, no block written twice."""
    batch: list[SwapMove] = []
    written: set[int] = set()
    for move in moves:
        target = move.host_block if move.is_out else move.device_block
        if batch and (move.is_out != batch[0].is_out or target in written):
            yield batch
            batch, written = [], set()
        batch.append(move)
        written.add(target)
    if batch:
        yield batch


def host_runs(batch: Sequence[SwapMove]) -> Iterator[tuple[int, int]]:
    """Half-open ranges of the batch whose host blocks are consecutive."""
    first = 0
    for number in range(1, len(batch) + 1):
        at_end = number == len(batch)
        if at_end or batch[number].host_block != batch[number - 1].host_block + 1:
            yield first, number
            first = number
