"""Write the K and V of new tokens into their slots of the pool."""

import torch
import triton
import triton.language as tl

from ..arguments.contents import check_slot_contents
from ..arguments.operations import check_store
from ..arguments.tuning import padded
from .attend import load_rows, store_rows
from .launch import Launch

_ELEMENTS_PER_PROGRAM = 4096


@triton.jit
def store_kv_kernel(
    k_ptr,
    v_ptr,
    key_ptr,
    value_ptr,
    slots_ptr,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    k_block_stride,
    k_slot_stride,
    k_head_stride,
    v_block_stride,
    v_slot_stride,
    v_head_stride,
    NUM_KV_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Grid (tokens, groups of HEADS heads). A negative slot writes and reads nothing."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    slot_id = tl.load(slots_ptr + token)
    writes = heads < tl.where(slot_id >= 0, NUM_KV_HEADS, 0)
    heads = heads.to(tl.int64)
    block = slot_id // BLOCK_SIZE
    slot = slot_id % BLOCK_SIZE

    key_rows = token * key_token_stride + heads * key_head_stride
    key = load_rows(key_ptr, key_rows, writes, HEAD_DIM, DIM_PAD)
    k_rows = block * k_block_stride + slot * k_slot_stride + heads * k_head_stride
    store_rows(k_ptr, k_rows, writes, key, HEAD_DIM, DIM_PAD)

    value_rows = token * value_token_stride + heads * value_head_stride
    value = load_rows(value_ptr, value_rows, writes, HEAD_DIM, DIM_PAD)
    v_rows = block * v_block_stride + slot * v_slot_stride + heads * v_head_stride
    store_rows(v_ptr, v_rows, writes, value, HEAD_DIM, DIM_PAD)


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    check_slots: bool = False,
) -> None:
    """Write row i of `key` and `value` to slot `slot_mapping[i]` of the pools.

    `key`, `value`: [num_rows, num_kv_heads, head_dim]. `slot_mapping`: int64 [num_tokens], slot s
    being slot s % block_size of block s // block_size; a negative one is padding. Rows behind
    `num_tokens` (padding of a CUDA graph) are not read. `check_slots`: read the slots back first;
    refuse those outside the pool, and two rows for one slot, whose winner would be chance.

    Raises KernelInputError before any launch.
    """
    launch = store_kv_launch(key, value, k_pool, v_pool, slot_mapping)
    if check_slots:
        check_slot_contents(slot_mapping, k_pool)
    launch.run()


def store_kv_launch(
    key: torch.Tensor,
    value: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> Launch:
    """The launch behind `store_kv`."""
    check_store(key, value, k_pool, v_pool, slot_mapping)
    num_tokens = slot_mapping.shape[0]
    num_kv_heads, head_dim = k_pool.shape[2:]
    dim_pad = padded(head_dim, 1)
    heads = min(padded(num_kv_heads, 1), max(1, _ELEMENTS_PER_PROGRAM // dim_pad))
    return Launch(
        store_kv_kernel,
        (num_tokens, triton.cdiv(num_kv_heads, heads)),
        {
            "k_ptr": k_pool,
            "v_ptr": v_pool,
            "key_ptr": key,
            "value_ptr": value,
            "slots_ptr": slot_mapping,
            "key_token_stride": key.stride(0),
            "key_head_stride": key.stride(1),
            "value_token_stride": value.stride(0),
            "value_head_stride": value.stride(1),
            "k_block_stride": k_pool.stride(0),
            "k_slot_stride": k_pool.stride(1),
            "k_head_stride": k_pool.stride(2),
            "v_block_stride": v_pool.stride(0),
            "v_slot_stride": v_pool.stride(1),
            "v_head_stride": v_pool.stride(2),
            "NUM_KV_HEADS": num_kv_heads,
            "HEADS": heads,
            "HEAD_DIM": head_dim,
            "DIM_PAD": dim_pad,
            "BLOCK_SIZE": k_pool.shape[1],
        },
        {"num_warps": 4, "num_stages": 1},
    )
