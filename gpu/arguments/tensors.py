"""Checks of kernel arguments: what the tensors' metadata says, and on request what they hold."""

import torch

from ..errors import KernelInputError

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def fail(message: str) -> None:
    """Raise the caller's error."""
    raise KernelInputError(message)


def check_pools(k_pool: torch.Tensor, v_pool: torch.Tensor) -> None:
    """K and V [num_blocks, block_size, num_kv_heads, head_dim], any strides but the last, 1."""
    check_rows("k_pool", k_pool, 4)
    check_rows("v_pool", v_pool, 4)
    if 0 in k_pool.shape:
        fail(f"k_pool has shape {list(k_pool.shape)}; every dimension must be at least 1")
    if v_pool.shape != k_pool.shape:
        fail(f"v_pool has shape {list(v_pool.shape)}; k_pool has {list(k_pool.shape)}")
    check_same("v_pool", v_pool, "k_pool", k_pool)


def check_rows(name: str, tensor: torch.Tensor, num_dims: int) -> None:
    """A float tensor of `num_dims` dimensions whose rows along the last one are contiguous."""
    if tensor.dim() != num_dims:
        fail(f"{name} has {tensor.dim()} dimensions {list(tensor.shape)}; it must have {num_dims}")
    if tensor.dtype not in FLOAT_DTYPES:
        fail(f"{name} is {tensor.dtype}; it must be float16, bfloat16 or float32")
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        fail(f"{name} has stride {tensor.stride(-1)} in its last dimension; it must be 1")
    for dim in range(num_dims - 1):
        if tensor.shape[dim] > 1 and tensor.stride(dim) < tensor.shape[-1]:
            fail(
                f"{name} has stride {tensor.stride(dim)} in dimension {dim}; rows of "
                f"{tensor.shape[-1]} elements would overlap"
            )


def check_same(name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    """Same dtype and device."""
    if tensor.dtype != other.dtype:
        fail(f"{name} is {tensor.dtype}; {other_name} is {other.dtype}")
    check_device(name, tensor, other)


def check_device(name: str, tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Same device."""
    if tensor.device != other.device:
        fail(f"{name} is on {tensor.device}; it must be on {other.device}")


def check_query(query: torch.Tensor, k_pool: torch.Tensor) -> None:
    """Query [num_tokens, num_heads, head_dim] of the pool's dtype, device and head dim.

    `k_pool`: any tensor that ends in [num_kv_heads, head_dim].
    """
    check_rows("query", query, 3)
    check_same("query", query, "k_pool", k_pool)
    num_heads, head_dim = query.shape[1:]
    num_kv_heads = k_pool.shape[-2]
    if head_dim != k_pool.shape[-1]:
        fail(f"query has head dim {head_dim}; the pool has {k_pool.shape[-1]}")
    if num_heads == 0 or num_heads % num_kv_heads:
        fail(f"query has {num_heads} heads; it must be a multiple of the {num_kv_heads} KV heads")


def check_out(out: torch.Tensor, query: torch.Tensor) -> None:
    """Output of the query's shape, dtype and device."""
    check_rows("out", out, 3)
    check_same("out", out, "query", query)
    if out.shape != query.shape:
        fail(f"out has shape {list(out.shape)}; query has {list(query.shape)}")


def check_ints(name: str, tensor: torch.Tensor, dtype: torch.dtype, like: torch.Tensor) -> None:
    """An integer tensor, contiguous along its last dimension, on the device of `like`."""
    if tensor.dtype != dtype:
        fail(f"{name} is {tensor.dtype}; it must be {dtype}")
    check_device(name, tensor, like)
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        fail(f"{name} has stride {tensor.stride(-1)} in its last dimension; it must be 1")


def check_lens(context_lens: torch.Tensor, num_seqs: int, like: torch.Tensor) -> None:
    """int32 [num_seqs]."""
    if context_lens.shape != (num_seqs,):
        fail(f"context_lens has shape {list(context_lens.shape)}; it must be [{num_seqs}]")
    check_ints("context_lens", context_lens, torch.int32, like)


def check_tables(block_tables: torch.Tensor, num_seqs: int, like: torch.Tensor) -> None:
    """int32 [num_seqs, max_blocks]."""
    if block_tables.dim() != 2 or block_tables.shape[0] != num_seqs:
        fail(f"block_tables has shape {list(block_tables.shape)}; it must be [{num_seqs}, ...]")
    check_ints("block_tables", block_tables, torch.int32, like)


def check_sinks(sinks: torch.Tensor | None, num_heads: int, like: torch.Tensor) -> None:
    """None, or one float logit a head."""
    if sinks is None:
        return
    check_rows("sinks", sinks, 1)
    check_device("sinks", sinks, like)
    if sinks.shape != (num_heads,):
        fail(f"sinks has shape {list(sinks.shape)}; it must be [{num_heads}]")
