"""Tensors whose rows lie 2^30 elements apart in one dimension, one tensor after the other.

The third row's offset does not fit 32 bits, though the stride does. Such strides come from views
into larger tensors, and from pools whose heads or slots lie apart.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from untouched_memory import untouched

from kvtwin.gpu.arguments import SplitPlan
from kvtwin.gpu.kernels import (
    contiguous_decode,
    copy_blocks,
    merge_partials,
    paged_decode,
    paged_prefill,
    store_kv,
)
from kvtwin.gpu.tools.guard import MemoryGuard
from kvtwin.gpu.tools.overflow import int32_checks

FAR = 2**30
NUM_SEQS, NUM_HEADS, HEAD_DIM, BLOCK_SIZE = 3, 3, 64, 4
# Dimensions of each argument that may lie apart; the last is contiguous.
POOL_DIMS = [(name, dim) for name in ("k_pool", "v_pool") for dim in (0, 1, 2)]
QUERY_DIMS = [(name, dim) for name in ("query", "out") for dim in (0, 1)]


def numbers(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5)).to(dtype)


def far_apart(near: torch.Tensor, dim: int) -> torch.Tensor:
    """The same numbers with rows of dimension `dim` 2^30 elements apart."""
    strides = list(near.stride())
    strides[dim] = FAR
    far = untouched(near.shape, strides, near.dtype)
    far.copy_(near)
    return far


def assert_distance_does_not_matter(
    operation: Callable[..., Any], arguments: dict[str, Any], far: tuple[str, int], changed: str
) -> None:
    """Run with one tensor near and far; the tensors that `changed` names come out alike."""
    near = {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }
    operation(**near)
    arguments[far[0]] = far_apart(arguments[far[0]], far[1])
    with int32_checks(), MemoryGuard():
        operation(**arguments)
    for name in changed.split():
        assert torch.equal(arguments[name], near[name]), name
        assert near[name].abs().sum() > 0


def pools() -> dict[str, torch.Tensor]:
    keys, values = numbers(2, 4, BLOCK_SIZE, NUM_HEADS, HEAD_DIM)
    return {"k_pool": keys, "v_pool": values}


def attention(num_tokens: int = NUM_SEQS) -> dict[str, Any]:
    """Three sequences in one block each, ids not in order."""
    query = numbers(num_tokens, NUM_HEADS, HEAD_DIM)
    return pools() | {
        "query": query,
        "out": torch.zeros_like(query),
        "block_tables": torch.tensor([[2, 0], [1, 0], [3, 0]], dtype=torch.int32),
        "context_lens": torch.tensor([4, 2, 3], dtype=torch.int32),
        "scale": 1 / 8,
    }


@pytest.mark.parametrize("num_splits", [1, 2])
@pytest.mark.parametrize("far", [*POOL_DIMS, *QUERY_DIMS, ("block_tables", 0)], ids=str)
def test_paged_decode(far: tuple[str, int], num_splits: int) -> None:
    arguments = attention() | {"split": SplitPlan(num_splits, min_split_tokens=1)}
    assert_distance_does_not_matter(paged_decode, arguments, far, "out")


@pytest.mark.parametrize("far", [*POOL_DIMS, *QUERY_DIMS, ("block_tables", 0)], ids=str)
def test_paged_prefill(far: tuple[str, int]) -> None:
    arguments = attention(5)
    arguments["query_starts"] = torch.tensor([0, 1, 3, 5], dtype=torch.int32)
    assert_distance_does_not_matter(paged_prefill, arguments, far, "out")


@pytest.mark.parametrize("far", [(name, dim) for name in "kv" for dim in (0, 1, 2)], ids=str)
def test_contiguous_decode(far: tuple[str, int]) -> None:
    arguments = attention()
    del arguments["block_tables"]
    k, v = arguments.pop("k_pool"), arguments.pop("v_pool")
    arguments |= {"k": k[:NUM_SEQS], "v": v[:NUM_SEQS]}
    assert_distance_does_not_matter(contiguous_decode, arguments, far, "out")


@pytest.mark.parametrize(
    "far", [*POOL_DIMS, *((name, dim) for name in ("key", "value") for dim in (0, 1))], ids=str
)
def test_store_kv(far: tuple[str, int]) -> None:
    key, value = 1 + numbers(2, 3, NUM_HEADS, HEAD_DIM)
    slots = torch.tensor([7, 0, 14])
    arguments = pools() | {"key": key, "value": value, "slot_mapping": slots}
    assert_distance_does_not_matter(store_kv, arguments, far, "k_pool v_pool")


@pytest.mark.parametrize("far", POOL_DIMS, ids=str)
def test_copy_blocks(far: tuple[str, int]) -> None:
    arguments = pools() | {"pairs": torch.tensor([[3, 0], [1, 2]])}
    assert_distance_does_not_matter(copy_blocks, arguments, far, "k_pool v_pool")


@pytest.mark.parametrize(
    "far", [*(("partials", dim) for dim in (0, 1, 2)), ("out", 0), ("out", 1)], ids=str
)
def test_merge_partials(far: tuple[str, int]) -> None:
    shape = (3, NUM_HEADS, 3, HEAD_DIM)
    arguments = {
        "partials": numbers(*shape, dtype=torch.float32),
        "lse": numbers(*shape[:3], dtype=torch.float32),
        "out": torch.zeros(3, NUM_HEADS, HEAD_DIM),
    }
    assert_distance_does_not_matter(merge_partials, arguments, far, "out")
