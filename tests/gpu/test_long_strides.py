"""Rows of queries, outputs, tables and parts that lie 2^30 elements apart.

The third row's offset does not fit 32 bits. Such strides come from views into larger tensors.
"""

import pytest
import torch
from untouched_memory import untouched

from kvtwin.gpu.arguments import SplitPlan
from kvtwin.gpu.kernels import merge_partials, paged_decode, paged_prefill, store_kv
from kvtwin.gpu.tools.guard import MemoryGuard
from kvtwin.gpu.tools.overflow import int32_checks

FAR = 2**30
NUM_ROWS, NUM_HEADS, HEAD_DIM = 3, 2, 64


def numbers(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5)).to(dtype)


def far_apart(near: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """The same numbers with rows of dimension `dim` 2^30 elements apart."""
    strides = list(near.stride())
    strides[dim] = FAR
    far = untouched(near.shape, strides, near.dtype)
    far.copy_(near)
    return far


@pytest.fixture
def kv() -> dict[str, torch.Tensor]:
    """Three sequences of one block of four slots each."""
    pool = numbers(2, 3, 4, NUM_HEADS, HEAD_DIM)
    return {
        "k_pool": pool[0],
        "v_pool": pool[1],
        "block_tables": torch.tensor([[2, 0], [1, 0], [0, 0]], dtype=torch.int32),
        "context_lens": torch.tensor([4, 2, 3], dtype=torch.int32),
    }


@pytest.mark.parametrize("num_splits", [1, 2])
def test_paged_decode(kv: dict[str, torch.Tensor], num_splits: int) -> None:
    query, options = numbers(NUM_ROWS, NUM_HEADS, HEAD_DIM), {"scale": 1 / 8}
    options["split"] = SplitPlan(num_splits, min_split_tokens=1)
    near = paged_decode(query, **kv, **options)
    kv["block_tables"] = far_apart(kv["block_tables"])
    out = far_apart(torch.zeros_like(query))
    with int32_checks(), MemoryGuard():
        paged_decode(far_apart(query), **kv, **options, out=out)
    assert torch.equal(out, near)
    assert near.abs().min() > 0


def test_paged_prefill(kv: dict[str, torch.Tensor]) -> None:
    query = numbers(NUM_ROWS, NUM_HEADS, HEAD_DIM)
    kv["query_starts"] = torch.tensor([0, 1, 1, 3], dtype=torch.int32)
    near = paged_prefill(query, **kv, scale=1 / 8)
    kv["block_tables"] = far_apart(kv["block_tables"])
    out = far_apart(torch.zeros_like(query))
    with int32_checks(), MemoryGuard():
        paged_prefill(far_apart(query), **kv, scale=1 / 8, out=out)
    assert torch.equal(out, near)
    assert near.abs().min() > 0


def test_store_kv(kv: dict[str, torch.Tensor]) -> None:
    key, value = numbers(2, NUM_ROWS, NUM_HEADS, HEAD_DIM)
    with int32_checks(), MemoryGuard():
        store_kv(
            far_apart(key), far_apart(value), kv["k_pool"], kv["v_pool"], torch.tensor([7, 0, 9])
        )
    for row, slot in enumerate([7, 0, 9]):
        assert torch.equal(kv["k_pool"][slot // 4, slot % 4], key[row])
        assert torch.equal(kv["v_pool"][slot // 4, slot % 4], value[row])


@pytest.mark.parametrize("dim", [0, 1, 2], ids=["tokens", "heads", "parts"])
def test_merge_partials(dim: int) -> None:
    shape = (NUM_ROWS, 3, 3, HEAD_DIM)
    partials, lse = numbers(*shape, dtype=torch.float32), numbers(*shape[:3], dtype=torch.float32)
    out = torch.zeros(NUM_ROWS, 3, HEAD_DIM)
    near = merge_partials(partials, lse, out=out.clone())
    with int32_checks(), MemoryGuard():
        far = merge_partials(far_apart(partials, dim), lse, out=out)
    assert torch.equal(far, near)
    assert near.abs().min() > 0
