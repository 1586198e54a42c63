"""Checks of kernel arguments: what the tensors' metadata says, and on request what they hold."""

from typing import Any, NoReturn

import torch

from ..errors import KernelInputError

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def fail(message: str) -> NoReturn:
    """Raise the caller's error."""
    raise KernelInputError(message)


def check_pools(
    k_pool: torch.Tensor, v_pool: torch.Tensor, names: tuple[str, str] = ("k_pool", "v_pool")
) -> None:
    """K and V [num_blocks, block_size, num_kv_heads, head_dim], any strides but the last, 1."""
    k_name, v_name = names
    check_rows(k_name, k_pool, 4)
    check_rows(v_name, v_pool, 4)
    if 0 in k_pool.shape:
        fail(f"{k_name} has shape {list(k_pool.shape)}; every dimension must be at least 1")
    if v_pool.shape != k_pool.shape:
        fail(f"{v_name} has shape {list(v_pool.shape)}; {k_name} has {list(k_pool.shape)}")
    check_same(v_name, v_pool, k_name, k_pool)


def check_tensor(name: str, value: Any) -> None:
    """A dense tensor that nothing is recorded of for a backward pass, which no operation has."""
    if not isinstance(value, torch.Tensor):
        fail(f"{name} is {type(value).__name__}; it must be a torch.Tensor")
    if value.layout != torch.strided:
        fail(f"{name} is {value.layout}; it must be torch.strided")
    if value.requires_grad and torch.is_grad_enabled():
        fail(f"{name} requires grad, and there is no backward: detach it, or use torch.no_grad()")


def check_memory(name: str, tensor: torch.Tensor) -> None:
    """Not a meta tensor, which has a shape and nothing else."""
    if tensor.device.type == "meta":
        fail(f"{name} is on meta, where nothing can be read or written")


def check_kind(name: str, value: Any, kind: type) -> None:
    """None, or an object of a class."""
    if value is not None and not isinstance(value, kind):
        fail(f"{name} is {type(value).__name__}; it must be a {kind.__name__}")


def check_rows(name: str, tensor: torch.Tensor, num_dims: int) -> None:
    """A float tensor of `num_dims` dimensions whose rows along the last one are contiguous."""
    check_tensor(name, tensor)
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
    check_device(name, tensor, other.device)


def check_device(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    """On that device."""
    if tensor.device != device:
        fail(f"{name} is on {tensor.device}; it must be on {device}")


def check_query(query: torch.Tensor, k_pool: torch.Tensor, name: str = "k_pool") -> None:
    """Query [num_tokens, num_heads, head_dim] of the pool's dtype, device and head dim.

    `k_pool`: any tensor that ends in [num_kv_heads, head_dim].
    """
    check_rows("query", query, 3)
    check_same("query", query, name, k_pool)
    num_heads, head_dim = query.shape[1:]
    num_kv_heads = k_pool.shape[-2]
    if head_dim != k_pool.shape[-1]:
        fail(f"query has head dim {head_dim}; {name} has {k_pool.shape[-1]}")
    if num_heads == 0 or num_heads % num_kv_heads:
        fail(f"query has {num_heads} heads; it must be a multiple of the {num_kv_heads} KV heads")


def make_out(query: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """`out`, or a new contiguous tensor like the query."""
    check_rows("query", query, 3)
    if out is not None:
        return out
    return torch.empty_like(query, memory_format=torch.contiguous_format)


def check_out(out: torch.Tensor, query: torch.Tensor) -> None:
    """Output of the query's shape, dtype and device."""
    check_rows("out", out, 3)
    check_same("out", out, "query", query)
    if out.shape != query.shape:
        fail(f"out has shape {list(out.shape)}; query has {list(query.shape)}")


def check_ints(
    name: str, tensor: torch.Tensor, dtype: torch.dtype, num_dims: int, like: torch.Tensor
) -> None:
    """An integer tensor, contiguous along its last dimension, on the device of `like`."""
    check_tensor(name, tensor)
    if tensor.dim() != num_dims:
        fail(f"{name} has {tensor.dim()} dimensions {list(tensor.shape)}; it must have {num_dims}")
    if tensor.dtype != dtype:
        fail(f"{name} is {tensor.dtype}; it must be {dtype}")
    check_device(name, tensor, like.device)
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        fail(f"{name} has stride {tensor.stride(-1)} in its last dimension; it must be 1")


def check_lens(context_lens: torch.Tensor, num_seqs: int, like: torch.Tensor) -> None:
    """int32 [num_seqs]."""
    check_ints("context_lens", context_lens, torch.int32, 1, like)
    if context_lens.shape != (num_seqs,):
        fail(f"context_lens has shape {list(context_lens.shape)}; it must be [{num_seqs}]")


def check_tables(block_tables: torch.Tensor, num_seqs: int | None, like: torch.Tensor) -> None:
    """int32 [num_seqs, max_blocks]; of any number of sequences where that is None."""
    check_ints("block_tables", block_tables, torch.int32, 2, like)
    if num_seqs is not None and block_tables.shape[0] != num_seqs:
        fail(f"block_tables has shape {list(block_tables.shape)}; it must be [{num_seqs}, ...]")


def check_sinks(sinks: torch.Tensor | None, num_heads: int, like: torch.Tensor) -> None:
    """None, or one float logit a head."""
    if sinks is None:
        return
    check_rows("sinks", sinks, 1)
    check_device("sinks", sinks, like.device)
    if sinks.shape != (num_heads,):
        fail(f"sinks has shape {list(sinks.shape)}; it must be [{num_heads}]")
