"""Move blocks between the device's pool and host memory, in order, few large transfers at a time."""

from collections.abc import Sequence

import torch

from ..arguments.operations import check_moves
from ..arguments.swaps import SwapMove, batches, host_runs
from .copy_blocks import copy_launch


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
    check_moves(k_pool, v_pool, host_pool, moves)
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
