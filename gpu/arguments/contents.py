"""What tables, lengths, slots and pairs hold, read back from the device: on request only."""

from collections.abc import Sequence
from itertools import pairwise

import torch

from ..errors import KernelInputError
from .tensors import check_memory


def first_of_decode(context_lens: torch.Tensor, window: int) -> list[int | None]:
    """The oldest token that each decode sees."""
    check_memory("context_lens", context_lens)
    lens = context_lens.tolist()
    return [max(context_len - window, 0) if window else 0 for context_len in lens]


def first_of_prefill(
    query_starts: torch.Tensor, context_lens: torch.Tensor, window: int
) -> list[int | None]:
    """The oldest token that each sequence's first query sees; None for one without queries."""
    starts, lens = query_starts.tolist(), context_lens.tolist()
    query_lens = [end - start for start, end in pairwise(starts)]
    return [
        (max(context_len - query_len - window + 1, 0) if window else 0) if query_len else None
        for query_len, context_len in zip(query_lens, lens, strict=True)
    ]


def check_table_contents(
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    k_pool: torch.Tensor,
    first_seen: Sequence[int | None],
) -> None:
    """Raise KernelInputError unless every entry that a kernel will read is a block of the pool.

    `first_seen`: the oldest token of each sequence that is read; None: nothing of it is. Entries
    behind the context, or wholly in front of that token, may hold anything.
    """
    num_blocks, block_size = k_pool.shape[:2]
    tables, lens = block_tables.cpu(), context_lens.tolist()
    max_blocks = tables.shape[1]
    for seq, (context_len, first_token) in enumerate(zip(lens, first_seen, strict=True)):
        if first_token is None:
            continue
        num_needed = -(-context_len // block_size)
        if context_len < 0 or num_needed > max_blocks:
            raise KernelInputError(
                f"context_lens[{seq}] is {context_len}; it must be from 0 to "
                f"{max_blocks * block_size}: {max_blocks} entries of {block_size} slots"
            )
        first = first_token // block_size
        entries = tables[seq, first:num_needed]
        bad = ((entries < 0) | (entries >= num_blocks)).nonzero()
        if len(bad):
            entry = first + int(bad[0])
            raise KernelInputError(
                f"block_tables[{seq}, {entry}] is {int(tables[seq, entry])}; "
                f"it must be from 0 to {num_blocks - 1}"
            )


def check_lens_contents(context_lens: torch.Tensor, max_context_len: int) -> None:
    """Raise KernelInputError unless all lengths are from 0 to `max_context_len`."""
    check_memory("context_lens", context_lens)
    for seq, context_len in enumerate(context_lens.tolist()):
        if not 0 <= context_len <= max_context_len:
            raise KernelInputError(
                f"context_lens[{seq}] is {context_len}; it must be from 0 to {max_context_len}"
            )


def check_query_starts(
    query_starts: torch.Tensor, context_lens: torch.Tensor, num_tokens: int
) -> None:
    """Raise KernelInputError unless the starts cut the queries into runs no longer than contexts.

    The context of a sequence without queries is not read, and may be any number.
    """
    check_memory("query_starts", query_starts)
    starts = query_starts.tolist()
    if starts[0] != 0 or starts[-1] > num_tokens:
        raise KernelInputError(
            f"query_starts goes from {starts[0]} to {starts[-1]}; "
            f"it must go from 0 to {num_tokens} or less"
        )
    for seq, context_len in enumerate(context_lens.tolist()):
        query_len = starts[seq + 1] - starts[seq]
        if query_len and not 0 <= query_len <= context_len:
            raise KernelInputError(
                f"query_starts gives sequence {seq} {query_len} tokens; "
                f"it must be from 0 to its context of {context_len}"
            )


def check_slot_contents(slot_mapping: torch.Tensor, k_pool: torch.Tensor) -> None:
    """Raise KernelInputError unless the slots are in the pool, and each is there once."""
    check_memory("slot_mapping", slot_mapping)
    num_slots = k_pool.shape[0] * k_pool.shape[1]
    seen: dict[int, int] = {}
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= num_slots:
            raise KernelInputError(
                f"slot_mapping[{token}] is {slot}; it must be below {num_slots}, or negative"
            )
        if slot >= 0 and slot in seen:
            raise KernelInputError(
                f"slot_mapping[{token}] is {slot}, as slot_mapping[{seen[slot]}] is"
            )
        seen[slot] = token


def check_pair_contents(pairs: torch.Tensor, num_blocks: int) -> None:
    """Raise KernelInputError unless all ids are blocks and no copy depends on another."""
    check_memory("pairs", pairs)
    listed = [(row, *pair) for row, pair in enumerate(pairs.tolist()) if min(pair) >= 0]
    sources = {source for _, source, _ in listed}
    targets: set[int] = set()
    for row, source, target in listed:
        if max(source, target) >= num_blocks:
            raise KernelInputError(
                f"pairs[{row}] is ({source}, {target}); ids must be below {num_blocks}"
            )
        if target in targets or target in sources:
            raise KernelInputError(
                f"pairs[{row}] copies to block {target}, which another pair of the call uses too"
            )
        targets.add(target)
