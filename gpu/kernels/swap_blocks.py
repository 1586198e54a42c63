"""Move blocks between the device's pool and host memory, in order, few large transfers at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ..errors import KernelInputError
from .copy_blocks import copy_launch
from .validate import check_pools, check_rows


@dataclass(frozen=True)
class SwapMove:
    """One block: to the host (`is_out`) or back."""

    is_out: bool
    device_block: int
    host_block: int


def allocate_host_pool(k_pool: torch.Tensor, num_host_blocks: int) -> torch.Tensor:
    """Host memory [num_host_blocks, 2 (K, V), block_size, num_kv_heads, head_dim].

    Pinned if the pool is on a GPU, so that transfers need no copy on the way.
    """
    shape = (num_host_blocks, 2, *k_pool.shape[1:])
    return torch.empty(shape, dtype=k_pool.dtype, pin_memory=k_pool.is_cuda)


def swap_blocks(
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    host_pool: torch.Tensor,
    moves: Sequence[SwapMove],
) -> None:
    """Carry out `moves` as if one after the other, on the current stream.

    Neighbouring moves of one direction go together: their blocks are gathered on the device (or
    scattered there) by one kernel, and consecutive host blocks travel in one transfer. On a GPU the
    call returns before the data has moved: host blocks may be read, or written by the CPU, only
    after the stream has been synchronised. `moves` itself is free at once.

    Raises KernelInputError before anything is moved.
    """
    check_pools(k_pool, v_pool)
    _check_host_pool(host_pool, k_pool)
    for number, move in enumerate(moves):
        for name, block, limit in (
            ("device_block", move.device_block, k_pool.shape[0]),
            ("host_block", move.host_block, host_pool.shape[0]),
        ):
            if not 0 <= block < limit:
                raise KernelInputError(
                    f"moves[{number}].{name} is {block}; it must be from 0 to {limit - 1}"
                )
    for batch in batches(moves):
        staging = torch.empty(
            (len(batch), *host_pool.shape[1:]), dtype=k_pool.dtype, device=k_pool.device
        )
        staged = (staging[:, 0], staging[:, 1])
        # From pageable memory, which the driver copies before it returns.
        ids = torch.tensor([move.device_block for move in batch], device=k_pool.device)
        if batch[0].is_out:
            copy_launch(staged, (k_pool, v_pool), None, ids, len(batch)).run()
        for first, last in host_runs(batch):
            host_block = batch[first].host_block
            on_host = host_pool[host_block : host_block + last - first]
            source, target = staging[first:last], on_host
            if not batch[0].is_out:
                source, target = target, source
            target.copy_(source, non_blocking=True)
        if not batch[0].is_out:
            copy_launch((k_pool, v_pool), staged, ids, None, len(batch)).run()


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


def _check_host_pool(host_pool: torch.Tensor, k_pool: torch.Tensor) -> None:
    check_rows("host_pool", host_pool, 5)
    wanted = [2, *k_pool.shape[1:]]
    if list(host_pool.shape[1:]) != wanted or host_pool.dtype != k_pool.dtype:
        raise KernelInputError(
            f"host_pool is {host_pool.dtype} {list(host_pool.shape)}; it must be "
            f"{k_pool.dtype} [num_host_blocks, {', '.join(map(str, wanted))}]"
        )
    if host_pool.is_cuda or not host_pool.is_contiguous():
        raise KernelInputError("host_pool must be contiguous host memory")
    if k_pool.is_cuda and not host_pool.is_pinned():
        raise KernelInputError("host_pool is not pinned; make it with allocate_host_pool")
