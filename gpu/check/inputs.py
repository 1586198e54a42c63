"""Tensors of a case: random K and V in a poisoned pool, where only owned slots hold numbers."""

from dataclasses import dataclass

import torch

from .case import Case

# An entry that no kernel may follow: far outside any pool.
POISON_ENTRY = 0x7F7F7F7F
NAN = float("nan")


@dataclass(frozen=True)
class Inputs:
    """`keys`, `values`: [context_len, num_kv_heads, head_dim] of each sequence, in order of tokens.

    The pool holds the same numbers in blocks of random ids; everything else in it is NaN, and so
    are queries that see nothing. Table entries in front of every window, whose blocks may have been
    freed, are no blocks.
    """

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    k_pool: torch.Tensor
    v_pool: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    query: torch.Tensor
    query_starts: torch.Tensor
    sinks: torch.Tensor | None


def make_inputs(case: Case, device: str = "cpu", seed: int = 0) -> Inputs:
    """Standard normal inputs, rounded to the case's dtype; the same for the same seed anywhere."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(case.torch_dtype)

    row_shape = (case.num_kv_heads, case.head_dim)
    keys = [normal(context_len, *row_shape) for context_len in case.context_lens]
    values = [normal(context_len, *row_shape) for context_len in case.context_lens]
    block_tables, num_blocks = make_tables(case, generator)
    k_pool, v_pool = poisoned_pools(case, num_blocks, device)
    for seq, context_len in enumerate(case.context_lens):
        tokens = torch.arange(context_len)
        blocks = block_tables[seq, tokens // case.block_size].long().to(device)
        slots = (tokens % case.block_size).to(device)
        k_pool[blocks, slots] = keys[seq].to(device)
        v_pool[blocks, slots] = values[seq].to(device)
    query_lens = case.query_lens or (1,) * len(case.context_lens)
    num_tokens = sum(query_lens) + case.num_padding
    starts = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    query = normal(num_tokens, case.num_heads, case.head_dim)
    query[starts[-1] :] = NAN
    for seq, (query_len, context_len) in enumerate(zip(query_lens, case.context_lens, strict=True)):
        if context_len == 0:
            query[starts[seq] : starts[seq + 1]] = NAN
        if case.window:
            oldest = max(context_len - query_len - case.window + 1, 0)
            block_tables[seq, : oldest // case.block_size] = POISON_ENTRY
    return Inputs(
        keys,
        values,
        k_pool,
        v_pool,
        block_tables.to(device),
        torch.tensor(case.context_lens, dtype=torch.int32, device=device),
        query.to(device),
        starts.to(device),
        torch.randn(case.num_heads, generator=generator).to(device) if case.sinks else None,
    )


def make_tables(case: Case, generator: torch.Generator) -> tuple[torch.Tensor, int]:
    """int32 table whose used entries are distinct ids in random order; and the pool's blocks.

    The table is exactly as wide as the longest context needs, and entries behind a context are
    poison. Two blocks of the pool are nobody's.
    """
    needed = [-(-context_len // case.block_size) for context_len in case.context_lens]
    num_blocks = sum(needed) + 2
    ids = iter(torch.randperm(num_blocks, generator=generator).tolist())
    tables = torch.full((len(needed), max([*needed, 1])), POISON_ENTRY, dtype=torch.int32)
    for seq, num_entries in enumerate(needed):
        for entry in range(num_entries):
            tables[seq, entry] = next(ids)
    return tables, num_blocks


def poisoned_pools(
    case: Case, num_blocks: int, device: str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V [num_blocks, block_size, num_kv_heads, head_dim] in the case's layout, all NaN."""

    def poison(*shape: int) -> torch.Tensor:
        return torch.full(shape, NAN, dtype=case.torch_dtype, device=device)

    size, heads, dim = case.block_size, case.num_kv_heads, case.head_dim
    if case.layout == "interleaved":
        both = poison(num_blocks, 2, size, heads, dim)
        return both[:, 0], both[:, 1]
    if case.layout == "padded":
        both = poison(2, num_blocks, size, heads, dim + 16)
        return both[0, ..., :dim], both[1, ..., :dim]
    by_token = [poison(num_blocks, size, heads, dim) for _ in range(2)]
    by_head = [poison(num_blocks, heads, size, dim).transpose(1, 2) for _ in range(2)]
    pools = {
        "NHD": (by_token[0], by_token[1]),
        "HND": (by_head[0], by_head[1]),
        "mixed": (by_token[0], by_head[1]),
    }
    return pools[case.layout]
