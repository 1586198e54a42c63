"""What block tables, lengths and slots hold, read back from the device: on request only."""

import torch

from ..errors import KernelInputError


def check_table_contents(
    block_tables: torch.Tensor, context_lens: torch.Tensor, k_pool: torch.Tensor, window: int
) -> None:
    """Raise KernelInputError unless every entry that a kernel will read is a block of the pool.

    Entries behind the context, or wholly in front of a decode's window, may hold anything.
    """
    num_blocks, block_size = k_pool.shape[:2]
    tables, lens = block_tables.cpu(), context_lens.cpu()
    max_blocks = tables.shape[1]
    for seq, context_len in enumerate(lens.tolist()):
        num_needed = -(-context_len // block_size)
        if context_len < 0 or num_needed > max_blocks:
            raise KernelInputError(
                f"context_lens[{seq}] is {context_len}; it must be from 0 to "
                f"{max_blocks * block_size}: {max_blocks} entries of {block_size} slots"
            )
        first = max(context_len - window, 0) // block_size if window else 0
        entries = tables[seq, first:num_needed]
        bad = ((entries < 0) | (entries >= num_blocks)).nonzero()
        if len(bad):
            entry = first + int(bad[0])
            raise KernelInputError(
                f"block_tables[{seq}, {entry}] is {int(tables[seq, entry])}; "
                f"it must be from 0 to {num_blocks - 1}"
            )


def check_query_starts(
    query_starts: torch.Tensor, context_lens: torch.Tensor, num_tokens: int
) -> None:
    """Raise KernelInputError unless the starts cut the queries into runs no longer than contexts."""
    starts = query_starts.tolist()
    if starts[0] != 0 or starts[-1] > num_tokens:
        raise KernelInputError(
            f"query_starts goes from {starts[0]} to {starts[-1]}; "
            f"it must go from 0 to {num_tokens} or less"
        )
    for seq, context_len in enumerate(context_lens.tolist()):
        query_len = starts[seq + 1] - starts[seq]
        if not 0 <= query_len <= context_len:
            raise KernelInputError(
                f"query_starts gives sequence {seq} {query_len} tokens; "
                f"it must be from 0 to its context of {context_len}"
            )
