"""The kernels' operations as vectorised torch for CPUs, in fp32, with the kernels' signatures.

Sequences are taken in groups of like length, so that little is computed for padding; blocks are
gathered by `index_select` of whole rows. One torch thread is fastest (`torch.set_num_threads(1)`).
`split`, `workspace` and `tuning`, which say how kernels cut their work, are taken and ignored.
"""

from collections.abc import Sequence

import torch

from .arguments import Scores, SplitPlan, SwapMove, Tuning
from .arguments.contents import check_pair_contents, check_slot_contents
from .arguments.operations import (
    check_contiguous,
    check_decode,
    check_moves,
    check_pairs_shape,
    check_parts,
    check_prefill,
    check_store,
)
from .arguments.tensors import check_device, make_out
from .torch_attention import attend, decode_rows, rows_of_like_length, softmax

CPU = torch.device("cpu")


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    check_slots: bool = False,
) -> None:
    """See `kernels.store_kv`."""
    check_store(key, value, k_pool, v_pool, slot_mapping)
    check_device("k_pool", k_pool, CPU)
    if check_slots:
        check_slot_contents(slot_mapping, k_pool)
    num_tokens = slot_mapping.shape[0]
    key, value = key[:num_tokens], value[:num_tokens]
    if bool((slot_mapping < 0).any()):
        is_token = slot_mapping >= 0
        slot_mapping, key, value = slot_mapping[is_token], key[is_token], value[is_token]
    blocks = slot_mapping // k_pool.shape[1]
    slots = slot_mapping % k_pool.shape[1]
    k_pool[blocks, slots] = key
    v_pool[blocks, slots] = value


def paged_decode(
    query: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    split: SplitPlan | None = None,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    check_table: bool = False,
    tuning: Tuning | None = None,
) -> torch.Tensor:
    """See `kernels.paged_decode`."""
    scores = Scores(scale, window, soft_cap, sinks)
    out = make_out(query, out)
    check_decode(query, k_pool, v_pool, block_tables, context_lens, scores, out, check_table)
    check_device("k_pool", k_pool, CPU)
    context_lens = context_lens.clamp(min=0)
    block_size = k_pool.shape[1]
    for rows in rows_of_like_length(context_lens):
        lens = context_lens[rows].long()
        first_blocks = (lens - window).clamp(min=0) // block_size if window else lens * 0
        num_blocks = int((-(-lens // block_size) - first_blocks).max())
        entries = first_blocks[:, None] + torch.arange(num_blocks)
        is_block = entries < -(-lens // block_size)[:, None]
        ids = block_tables[rows].long().gather(1, torch.where(is_block, entries, 0))
        ids = torch.where(is_block, ids, 0).flatten()
        shape = (len(rows), num_blocks * block_size, *k_pool.shape[2:])
        keys = k_pool.index_select(0, ids).view(shape)
        values = v_pool.index_select(0, ids).view(shape)
        positions = first_blocks[:, None] * block_size + torch.arange(shape[1])
        out[rows] = decode_rows(query[rows], keys, values, positions, lens, scores)
    return out


def contiguous_decode(
    query: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    split: SplitPlan | None = None,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    check_lens_fit: bool = False,
    tuning: Tuning | None = None,
) -> torch.Tensor:
    """See `kernels.contiguous_decode`."""
    scores = Scores(scale, window, soft_cap, sinks)
    out = make_out(query, out)
    check_contiguous(query, k, v, context_lens, scores, out, check_lens_fit)
    check_device("k", k, CPU)
    context_lens = context_lens.clamp(min=0)
    for rows in rows_of_like_length(context_lens):
        lens = context_lens[rows].long()
        longest = int(lens.max())
        positions = torch.arange(longest).expand(len(rows), -1)
        keys, values = (tensor[rows, :longest].contiguous() for tensor in (k, v))
        out[rows] = decode_rows(query[rows], keys, values, positions, lens, scores)
    return out


def paged_prefill(
    query: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    check_table: bool = False,
    tuning: Tuning | None = None,
) -> torch.Tensor:
    """See `kernels.paged_prefill`."""
    scores = Scores(scale, window, soft_cap, sinks)
    out = make_out(query, out)
    check_prefill(
        query, k_pool, v_pool, block_tables, query_starts, context_lens, scores, out, check_table
    )
    check_device("k_pool", k_pool, CPU)
    block_size = k_pool.shape[1]
    starts = query_starts.tolist()
    out[starts[-1] :] = 0.0
    for seq, context_len in enumerate(context_lens.tolist()):
        start, end = starts[seq], starts[seq + 1]
        if start == end:
            continue
        first_query = context_len - (end - start)  # in front of the sequence if that is too short
        oldest = max(first_query - window + 1, 0) if window else 0
        num_tokens = max(context_len, oldest)
        first_block = oldest // block_size
        ids = block_tables[seq, first_block : -(-num_tokens // block_size)]
        tokens = torch.arange(oldest, num_tokens) - first_block * block_size
        keys, values = (
            pool.index_select(0, ids).flatten(0, 1)[tokens].float() for pool in (k_pool, v_pool)
        )
        positions = torch.arange(first_query, context_len)[:, None]
        key_positions = torch.arange(oldest, num_tokens)
        hidden = key_positions > positions
        if window:
            hidden |= key_positions <= positions - window
        num_kv_heads, head_dim = k_pool.shape[2:]
        rows = query[start:end].float().view(end - start, num_kv_heads, -1, head_dim)
        rows = rows.permute(1, 2, 0, 3)  # KV head, head of its group, token
        keys, values = keys.permute(1, 0, 2)[:, None], values.permute(1, 0, 2)[:, None]
        result = attend(rows, keys, values, hidden, scores)
        out[start:end] = result.permute(2, 0, 1, 3).flatten(1, 2).to(out.dtype)
    return out


def merge_partials(
    partials: torch.Tensor,
    lse: torch.Tensor,
    *,
    sinks: torch.Tensor | None = None,
    out: torch.Tensor,
) -> torch.Tensor:
    """See `kernels.merge_partials`."""
    check_parts(partials, lse, sinks, out)
    check_device("partials", partials, CPU)
    is_part = ~lse.isinf()
    lse = lse.masked_fill(~is_part, -torch.inf)
    logits = lse
    if sinks is not None:
        column = sinks.float()[None, :, None].expand(len(lse), -1, 1)
        logits = torch.cat([lse, column], dim=2)
    weights = softmax(logits)[:, :, : lse.shape[2]]
    values = partials.masked_fill(~is_part[..., None], 0.0)
    out.copy_((values * weights[..., None]).sum(2))
    return out


def copy_blocks(
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    pairs: torch.Tensor,
    *,
    check_pairs: bool = False,
) -> None:
    """See `kernels.copy_blocks`."""
    check_pairs_shape(k_pool, v_pool, pairs)
    check_device("k_pool", k_pool, CPU)
    if check_pairs:
        check_pair_contents(pairs, k_pool.shape[0])
    sources, targets = pairs[(pairs >= 0).all(1)].unbind(1)
    for pool in (k_pool, v_pool):
        pool[targets] = pool[sources]


def swap_blocks(
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    host_pool: torch.Tensor,
    moves: Sequence[SwapMove],
) -> None:
    """See `kernels.swap_blocks`."""
    check_moves(k_pool, v_pool, host_pool, moves)
    check_device("k_pool", k_pool, CPU)
    for move in moves:
        for number, pool in enumerate((k_pool, v_pool)):
            pair = (host_pool[move.host_block, number], pool[move.device_block])
            source, target = reversed(pair) if move.is_out else pair
            target.copy_(source)
