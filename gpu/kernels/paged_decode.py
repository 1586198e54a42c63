"""One query token a sequence against KV in blocks, split over the KV length."""

import torch
import triton
import triton.language as tl

from ..arguments.operations import check_decode
from ..arguments.scores import Scores
from ..arguments.tensors import check_kind, make_out
from ..arguments.tuning import (
    SplitPlan,
    Tuning,
    decode_tuning,
    num_multiprocessors,
    padded,
    plan_splits,
)
from .attend import add_sink, attend, load_rows, normalise, store_rows
from .launch import Launch
from .merge import merge_launch
from .workspace import parts_in


@triton.jit(do_not_specialize=["window", "min_split_tokens", "table_row_stride"])
def decode_kernel(
    out_ptr,
    partials_ptr,
    maxima_ptr,
    sums_ptr,
    query_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    sinks_ptr,
    tanh_scale,
    logit_scale,
    window,
    min_split_tokens,
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
    TILE: tl.constexpr,
    IS_PAGED: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Grid (sequences, KV heads, splits): all query heads of a KV head read its KV once.

    Not paged, a sequence's tokens are the slots of one block of its own.
    """
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    num_splits = tl.num_programs(2)

    # Every split of a sequence is a whole number of tiles but the last; trailing ones are empty.
    context_len = tl.maximum(tl.load(lens_ptr + seq), 0)
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(context_len - window, 0)
    split_tokens = tl.maximum(tl.cdiv(context_len - first, num_splits), min_split_tokens)
    split_tokens = tl.cdiv(split_tokens, TILE) * TILE
    begin = first + split * split_tokens
    end = tl.minimum(begin + split_tokens, context_len)

    group = tl.arange(0, GROUP_PAD)
    heads = kv_head * GROUP + group
    is_head = group < GROUP
    reads = group < tl.where(begin < end, GROUP, 0)
    query_rows = seq * query_token_stride + heads * query_head_stride
    query = load_rows(query_ptr, query_rows, reads, HEAD_DIM, DIM_PAD)

    row_max = tl.full([GROUP_PAD], float("-inf"), tl.float32)
    row_sum = tl.zeros([GROUP_PAD], tl.float32)
    acc = tl.zeros([GROUP_PAD, DIM_PAD], tl.float32)
    for tile_begin in range(begin, end, TILE):
        tokens = tile_begin + tl.arange(0, TILE)
        is_token = tokens < end
        if IS_PAGED:
            entries = tables_ptr + seq * table_row_stride + tokens // BLOCK_SIZE
            blocks = tl.load(entries, mask=is_token, other=0).to(tl.int64)
            slots = (tokens % BLOCK_SIZE).to(tl.int64)
        else:
            blocks = tl.zeros([TILE], tl.int64) + seq
            slots = tokens.to(tl.int64)
        k_rows = blocks * k_block_stride + slots * k_slot_stride + kv_head * k_head_stride
        v_rows = blocks * v_block_stride + slots * v_slot_stride + kv_head * v_head_stride
        k = load_rows(k_ptr, k_rows, is_token, HEAD_DIM, DIM_PAD)
        v = load_rows(v_ptr, v_rows, is_token, HEAD_DIM, DIM_PAD)
        row_max, row_sum, acc = attend(
            query,
            k,
            v,
            is_token[None, :],
            row_max,
            row_sum,
            acc,
            tanh_scale,
            logit_scale,
            HAS_SOFT_CAP,
        )

    if IS_SPLIT:
        parts = (seq * tl.num_programs(1) * GROUP + heads) * num_splits + split
        # Not one logarithm of both: fp32 of a large one would have no digits left for the sum.
        tl.store(maxima_ptr + parts, row_max, mask=is_head)
        tl.store(sums_ptr + parts, row_sum, mask=is_head)
        # An empty part is marked by its largest score, -inf; its values are never read.
        out = normalise(row_sum, acc)
        store_rows(partials_ptr, parts * HEAD_DIM, reads, out, HEAD_DIM, DIM_PAD)
    else:
        if HAS_SINKS:
            sinks = tl.load(sinks_ptr + heads, mask=is_head, other=0.0)
            row_sum, acc = add_sink(row_max, row_sum, acc, sinks, logit_scale)
        out_rows = seq * out_token_stride + heads * out_head_stride
        out = normalise(row_sum, acc)
        store_rows(out_ptr, out_rows, is_head, out, HEAD_DIM, DIM_PAD)


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
    """Attention of one new token a sequence to the KV of its context, its own included.

    `query`: [num_seqs, num_heads, head_dim]. `k_pool`, `v_pool`: [num_blocks, block_size,
    num_kv_heads, head_dim] by any strides. `block_tables`: int32 [num_seqs, max_blocks]; only the
    entries of tokens that are seen are read. `context_lens`: int32 [num_seqs]; a row of length 0
    (padding) gives 0. `scale`, `window`, `soft_cap`, `sinks`: see `Scores`.

    `split` (default: `plan_splits` of contexts as long as the table is wide) fixes how the KV
    length is cut. Nothing is read back from the device, so a launch can be captured in a CUDA
    graph; give `out` and `workspace` then: fp32, `workspace_elements` or more of them.
    `check_table`: read lengths and table back first, and refuse what does not fit the pool.

    Returns `out`, of the query's shape and dtype. Raises KernelInputError before any launch.
    """
    scores = Scores(scale, window, soft_cap, sinks)
    out = make_out(query, out)
    check_decode(query, k_pool, v_pool, block_tables, context_lens, scores, out, check_table)
    if split is None:
        max_context_len = block_tables.shape[1] * k_pool.shape[1]
        split = default_split(query, k_pool, max_context_len)
    for launch in decode_launches(
        query, k_pool, v_pool, block_tables, context_lens, scores, split, workspace, out, tuning
    ):
        launch.run()
    return out


def default_split(query: torch.Tensor, k_pool: torch.Tensor, max_context_len: int) -> SplitPlan:
    """For contexts that all are as long as they can be: the lengths are on the device."""
    return plan_splits(
        query.shape[0] * max_context_len,
        max_context_len,
        k_pool.shape[2],
        num_multiprocessors(query.device),
    )


def decode_launches(
    query: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor | None,
    context_lens: torch.Tensor,
    scores: Scores,
    split: SplitPlan,
    workspace: torch.Tensor | None,
    out: torch.Tensor,
    tuning: Tuning | None,
) -> list[Launch]:
    """The launches of a decode that was checked: one, or splits and their merge.

    Without tables KV is contiguous.
    """
    check_kind("split", split, SplitPlan)
    check_kind("tuning", tuning, Tuning)
    num_seqs, num_heads, head_dim = query.shape
    block_size, num_kv_heads = k_pool.shape[1:3]
    tuning = tuning or decode_tuning(head_dim, query.dtype)
    is_split = split.num_splits > 1
    partials = maxima = sums = None
    if is_split:
        others = {"query": query, "k_pool": k_pool, "v_pool": v_pool, "sinks": scores.sinks}
        others |= {"block_tables": block_tables, "context_lens": context_lens, "out": out}
        partials, maxima, sums = parts_in(workspace, query, split, others)
    kernel = Launch(
        decode_kernel,
        (num_seqs, num_kv_heads, split.num_splits),
        {
            "out_ptr": None if is_split else out,
            "partials_ptr": partials,
            "maxima_ptr": maxima,
            "sums_ptr": sums,
            "query_ptr": query,
            "k_ptr": k_pool,
            "v_ptr": v_pool,
            "tables_ptr": block_tables,
            "lens_ptr": context_lens,
            "sinks_ptr": None if is_split else scores.sinks,
            "tanh_scale": scores.tanh_scale,
            "logit_scale": scores.logit_scale,
            "window": scores.window,
            "min_split_tokens": split.min_split_tokens,
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
            "table_row_stride": block_tables.stride(0) if block_tables is not None else 0,
            "GROUP": num_heads // num_kv_heads,
            "GROUP_PAD": padded(num_heads // num_kv_heads, 1),
            "HEAD_DIM": head_dim,
            "DIM_PAD": padded(head_dim, 16),
            # What contiguous KV is cut into does not matter: one variant for every length.
            "BLOCK_SIZE": block_size if block_tables is not None else 1,
            "TILE": tuning.tile_tokens,
            "IS_PAGED": block_tables is not None,
            "IS_SPLIT": is_split,
            "HAS_WINDOW": scores.window > 0,
            "HAS_SOFT_CAP": scores.soft_cap > 0.0,
            "HAS_SINKS": scores.sinks is not None and not is_split,
        },
        {"num_warps": tuning.num_warps, "num_stages": tuning.num_stages},
    )
    if not is_split:
        return [kernel]
    merge = merge_launch(partials, maxima, sums, scores.logit_scale, scores.sinks, out)
    return [kernel, merge]
