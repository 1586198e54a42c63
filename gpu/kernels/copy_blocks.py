"""Copy whole blocks inside the pool: the copy of copy-on-write."""

import torch
import triton
import triton.language as tl

from ..arguments.contents import check_pair_contents
from ..arguments.operations import check_pairs_shape
from ..arguments.tuning import padded
from .attend import load_rows, store_rows
from .launch import Launch

_ELEMENTS_PER_PROGRAM = 4096


@triton.jit
def copy_blocks_kernel(
    k_to_ptr,
    v_to_ptr,
    k_from_ptr,
    v_from_ptr,
    to_ids_ptr,
    from_ids_ptr,
    ids_stride,
    k_to_block_stride,
    k_to_slot_stride,
    k_to_head_stride,
    v_to_block_stride,
    v_to_slot_stride,
    v_to_head_stride,
    k_from_block_stride,
    k_from_slot_stride,
    k_from_head_stride,
    v_from_block_stride,
    v_from_slot_stride,
    v_from_head_stride,
    NUM_KV_HEADS: tl.constexpr,
    NUM_ROWS: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
):
    """Grid (pairs, groups of ROWS rows); row r of a block is slot r // heads, head r % heads.

    Without ids a side's block i is that of pair i. A negative id on either side copies nothing.
    """
    pair = tl.program_id(0).to(tl.int64)
    to_block = pair
    from_block = pair
    if to_ids_ptr is not None:
        to_block = tl.load(to_ids_ptr + pair * ids_stride)
    if from_ids_ptr is not None:
        from_block = tl.load(from_ids_ptr + pair * ids_stride)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_row = rows < tl.where(tl.minimum(to_block, from_block) >= 0, NUM_ROWS, 0)
    slots = (rows // NUM_KV_HEADS).to(tl.int64)
    heads = (rows % NUM_KV_HEADS).to(tl.int64)

    k_from = from_block * k_from_block_stride
    k_from += slots * k_from_slot_stride + heads * k_from_head_stride
    k = load_rows(k_from_ptr, k_from, is_row, HEAD_DIM, DIM_PAD)
    k_to = to_block * k_to_block_stride + slots * k_to_slot_stride + heads * k_to_head_stride
    store_rows(k_to_ptr, k_to, is_row, k, HEAD_DIM, DIM_PAD)

    v_from = from_block * v_from_block_stride
    v_from += slots * v_from_slot_stride + heads * v_from_head_stride
    v = load_rows(v_from_ptr, v_from, is_row, HEAD_DIM, DIM_PAD)
    v_to = to_block * v_to_block_stride + slots * v_to_slot_stride + heads * v_to_head_stride
    store_rows(v_to_ptr, v_to, is_row, v, HEAD_DIM, DIM_PAD)


def copy_blocks(
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    pairs: torch.Tensor,
    *,
    check_pairs: bool = False,
) -> None:
    """Copy block pairs[i, 0] to block pairs[i, 1] of both pools, all pairs at once.

    `pairs`: int64 [num_pairs, 2]; a pair with a negative id is padding. No block may be copied to
    twice, nor copied to and from in one call: the order would be chance. `check_pairs`: read the
    pairs back first, and refuse that, and ids outside the pool.

    Raises KernelInputError before any launch.
    """
    check_pairs_shape(k_pool, v_pool, pairs)
    if check_pairs:
        check_pair_contents(pairs, k_pool.shape[0])
    pools = (k_pool, v_pool)
    copy_launch(pools, pools, pairs[:, 1], pairs[:, 0], pairs.shape[0]).run()


def copy_launch(
    to_pools: tuple[torch.Tensor, torch.Tensor],
    from_pools: tuple[torch.Tensor, torch.Tensor],
    to_ids: torch.Tensor | None,
    from_ids: torch.Tensor | None,
    num_pairs: int,
) -> Launch:
    """Copy blocks of one (K, V) pair of pools to another; None counts blocks from 0."""
    (k_to, v_to), (k_from, v_from) = to_pools, from_pools
    block_size, num_kv_heads, head_dim = k_to.shape[1:]
    dim_pad = padded(head_dim, 1)
    num_rows = block_size * num_kv_heads
    rows = min(padded(num_rows, 1), max(1, _ELEMENTS_PER_PROGRAM // dim_pad))
    ids = next((ids for ids in (to_ids, from_ids) if ids is not None), None)
    strides = {
        f"{name}_{dim}_stride": tensor.stride(number)
        for name, tensor in (("k_to", k_to), ("v_to", v_to), ("k_from", k_from), ("v_from", v_from))
        for number, dim in enumerate(("block", "slot", "head"))
    }
    return Launch(
        copy_blocks_kernel,
        (num_pairs, triton.cdiv(num_rows, rows)),
        {
            "k_to_ptr": k_to,
            "v_to_ptr": v_to,
            "k_from_ptr": k_from,
            "v_from_ptr": v_from,
            "to_ids_ptr": to_ids,
            "from_ids_ptr": from_ids,
            "ids_stride": ids.stride(0) if ids is not None else 0,
            **strides,
            "NUM_KV_HEADS": num_kv_heads,
            "NUM_ROWS": num_rows,
            "ROWS": rows,
            "HEAD_DIM": head_dim,
            "DIM_PAD": dim_pad,
        },
        {"num_warps": 4, "num_stages": 1},
    )
