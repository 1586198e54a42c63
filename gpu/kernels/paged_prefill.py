"""Queries of variable length against KV in blocks, causal: prompts, chunks of them, and decodes."""

import torch
import triton
import triton.language as tl

from ..arguments.operations import check_prefill
from ..arguments.scores import Scores
from ..arguments.tensors import check_kind, make_out
from ..arguments.tuning import Tuning, padded, prefill_tuning
from .attend import add_sink, attend, load_rows, normalise, store_rows
from .launch import Launch


@triton.jit(do_not_specialize=["window", "num_seqs", "num_tokens", "table_row_stride"])
def prefill_kernel(
    out_ptr,
    query_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    starts_ptr,
    lens_ptr,
    sinks_ptr,
    tanh_scale,
    logit_scale,
    window,
    num_seqs,
    num_tokens,
    query_token_stride,
    query_head_stride,
    out_token_stride,
    out_head_stride,
    k_block_stride,
    k_slot_stride,
    k_head_stride,
    v_block_stride,
    v_slot_stride,
    v_head_stride,
    table_row_stride,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    TILE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Grid (query tiles, KV heads). A tile is QUERY_TILE tokens of one sequence x GROUP heads.

    Tiles are numbered so that sequence s owns starts[s] // QUERY_TILE + s and those that follow: room
    for its last, partly filled one, whatever the lengths are, in a grid that depends on their sum
    only. Tokens behind the last sequence are one more, without a context.
    """
    tile = tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    low = 0
    high = num_seqs + 1
    while high - low > 1:
        middle = (low + high) // 2
        is_behind = tl.load(starts_ptr + middle) // QUERY_TILE + middle > tile
        high = tl.where(is_behind, middle, high)
        low = tl.where(is_behind, low, middle)
    seq = low
    is_seq = seq < num_seqs
    start = tl.load(starts_ptr + seq)
    end = tl.load(starts_ptr + seq + 1, mask=is_seq, other=0)
    end = tl.where(is_seq, end, num_tokens)
    context_len = tl.maximum(tl.load(lens_ptr + seq, mask=is_seq, other=0), 0)
    query_len = end - start
    first_query = (tile - (start // QUERY_TILE + seq)) * QUERY_TILE

    rows = tl.arange(0, QUERY_TILE * GROUP_PAD)
    queries = first_query + rows // GROUP_PAD
    group = rows % GROUP_PAD
    is_row = (queries < query_len) & (group < GROUP)
    # Position of a query token in its sequence: the last query token is the last of the context.
    num_cached = context_len - query_len
    positions = num_cached + queries
    tokens_in = (start + queries).to(tl.int64)
    heads = kv_head * GROUP + group
    query_rows = tokens_in * query_token_stride + heads * query_head_stride
    query = load_rows(query_ptr, query_rows, is_row, HEAD_DIM, DIM_PAD)

    # Keys that any row of the tile sees: none of another sequence, none behind its last position.
    key_end = tl.minimum(num_cached + first_query + QUERY_TILE, context_len)
    key_end = tl.where(first_query < query_len, key_end, 0)
    key_begin = 0
    if HAS_WINDOW:
        key_begin = tl.maximum(num_cached + first_query - window + 1, 0)

    row_max = tl.full([QUERY_TILE * GROUP_PAD], float("-inf"), tl.float32)
    row_sum = tl.zeros([QUERY_TILE * GROUP_PAD], tl.float32)
    acc = tl.zeros([QUERY_TILE * GROUP_PAD, DIM_PAD], tl.float32)
    seq_row = seq.to(tl.int64) * table_row_stride
    for tile_begin in range(key_begin, key_end, TILE):
        keys = tile_begin + tl.arange(0, TILE)
        is_key = keys < key_end
        entries = tables_ptr + seq_row + keys // BLOCK_SIZE
        blocks = tl.load(entries, mask=is_key, other=0).to(tl.int64)
        slots = (keys % BLOCK_SIZE).to(tl.int64)
        k_rows = blocks * k_block_stride + slots * k_slot_stride + kv_head * k_head_stride
        v_rows = blocks * v_block_stride + slots * v_slot_stride + kv_head * v_head_stride
        k = load_rows(k_ptr, k_rows, is_key, HEAD_DIM, DIM_PAD)
        v = load_rows(v_ptr, v_rows, is_key, HEAD_DIM, DIM_PAD)
        visible = is_key[None, :] & (keys[None, :] <= positions[:, None])
        if HAS_WINDOW:
            visible = visible & (keys[None, :] > positions[:, None] - window)
        row_max, row_sum, acc = attend(
            query,
            k,
            v,
            visible,
            row_max,
            row_sum,
            acc,
            tanh_scale,
            logit_scale,
            HAS_SOFT_CAP,
        )

    if HAS_SINKS:
        sinks = tl.load(sinks_ptr + heads, mask=is_row, other=0.0)
        row_sum, acc = add_sink(row_max, row_sum, acc, sinks, logit_scale)
    out_rows = tokens_in * out_token_stride + heads * out_head_stride
    store_rows(out_ptr, out_rows, is_row, normalise(row_sum, acc), HEAD_DIM, DIM_PAD)


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
    """Causal attention of the last tokens of each sequence to its KV, their own included.

    `query`: [num_tokens, num_heads, head_dim], sequence s in rows query_starts[s] to
    query_starts[s + 1]; rows behind the last are padding and give 0. `query_starts`: int32
    [num_seqs + 1], from 0. `context_lens`: int32 [num_seqs], tokens whose KV is in the pool, the
    queries' own (their last ones) included; so a whole prompt, a chunk of one, a prompt behind a
    cached prefix, and a decode differ in numbers only. The rest is as in `paged_decode`; the grid
    depends on shapes alone.

    `check_table`: read starts, lengths and table back first, and refuse what does not fit.

    Returns `out`, of the query's shape and dtype. Raises KernelInputError before any launch.
    """
    scores = Scores(scale, window, soft_cap, sinks)
    out = make_out(query, out)
    check_prefill(
        query, k_pool, v_pool, block_tables, query_starts, context_lens, scores, out, check_table
    )
    prefill_launch(
        query, k_pool, v_pool, block_tables, query_starts, context_lens, scores, out, tuning
    ).run()
    return out


def prefill_launch(
    query: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    scores: Scores,
    out: torch.Tensor,
    tuning: Tuning | None,
) -> Launch:
    """The launch behind `paged_prefill`, of arguments that `check_prefill` has passed."""
    check_kind("tuning", tuning, Tuning)
    num_tokens, num_heads, head_dim = query.shape
    num_seqs = context_lens.shape[0]
    block_size, num_kv_heads = k_pool.shape[1:3]
    group_pad = padded(num_heads // num_kv_heads, 1)
    tuning = tuning or prefill_tuning(head_dim, query.dtype)
    query_tile = max(1, tuning.query_rows // group_pad)
    num_tiles = num_tokens // query_tile + num_seqs + 1 if num_tokens else 0
    return Launch(
        prefill_kernel,
        (num_tiles, num_kv_heads),
        {
            "out_ptr": out,
            "query_ptr": query,
            "k_ptr": k_pool,
            "v_ptr": v_pool,
            "tables_ptr": block_tables,
            "starts_ptr": query_starts,
            "lens_ptr": context_lens,
            "sinks_ptr": scores.sinks,
            "tanh_scale": scores.tanh_scale,
            "logit_scale": scores.logit_scale,
            "window": scores.window,
            "num_seqs": num_seqs,
            "num_tokens": num_tokens,
            "query_token_stride": query.stride(0),
            "query_head_stride": query.stride(1),
            "out_token_stride": out.stride(0),
            "out_head_stride": out.stride(1),
            "k_block_stride": k_pool.stride(0),
            "k_slot_stride": k_pool.stride(1),
            "k_head_stride": k_pool.stride(2),
            "v_block_stride": v_pool.stride(0),
            "v_slot_stride": v_pool.stride(1),
            "v_head_stride": v_pool.stride(2),
            "table_row_stride": block_tables.stride(0),
            "GROUP": num_heads // num_kv_heads,
            "GROUP_PAD": group_pad,
            "HEAD_DIM": head_dim,
            "DIM_PAD": padded(head_dim, 16),
            "BLOCK_SIZE": block_size,
            "QUERY_TILE": query_tile,
            "TILE": tuning.tile_tokens,
            "HAS_WINDOW": scores.window > 0,
            "HAS_SOFT_CAP": scores.soft_cap > 0.0,
            "HAS_SINKS": scores.sinks is not None,
        },
        {"num_warps": tuning.num_warps, "num_stages": tuning.num_stages},
    )
