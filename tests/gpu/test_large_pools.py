"""Pools of more than 2^31 elements: offsets must be 64 bits wide everywhere.

The pools are address space that nothing backs until it is touched, so these run anywhere. Where an
offset that wrapped at 2^31 or 2^32 would land there is NaN, and the memory guard sees the rest.
vllm-project/vllm PR#1514 (K01), flashinfer-ai/flashinfer PR#3136 (K04), ROCm/aiter #2608 (K07).
"""

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from kvtwin.gpu.arguments import SplitPlan, SwapMove
from kvtwin.gpu.kernels import (
    contiguous_decode,
    copy_blocks,
    paged_decode,
    paged_prefill,
    store_kv,
    swap_blocks,
)
from kvtwin.gpu.tools.guard import MemoryGuard
from kvtwin.gpu.tools.overflow import int32_checks

NUM_KV_HEADS, HEAD_DIM = 2, 64
ROW = NUM_KV_HEADS * HEAD_DIM  # elements of one token slot
# Elements that an offset of 32 bits can reach, signed and unsigned, and a block just behind each.
LIMITS = {"signed": 2**31, "unsigned": 2**32}
BLOCK_SIZES = [1, 16]
MAP_NORESERVE = 0x4000  # Linux; Python names it from 3.13 on


def empty_pool(num_blocks: int, block_size: int) -> torch.Tensor:
    """fp16 [num_blocks, block_size, heads, head_dim] of zeros that take no memory until touched."""
    shape = (num_blocks, block_size, NUM_KV_HEADS, HEAD_DIM)
    num_bytes = 2 * int(np.prod(shape))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    return torch.frombuffer(mmap.mmap(-1, num_bytes, flags=flags), dtype=torch.float16).view(shape)


class LargePools:
    """K and V pools whose last block lies behind a limit, and is the only one that holds numbers."""

    def __init__(self, limit: str, block_size: int) -> None:
        self.block_size = block_size
        self.last = LIMITS[limit] // (ROW * block_size) + 1
        self.k, self.v = (empty_pool(self.last + 1, block_size) for _ in "kv")
        assert self.last * self.k.stride(0) > LIMITS[limit]
        # Where the last block's offset wraps to.
        self.wrapped = self.last - LIMITS["unsigned"] // (ROW * block_size)
        for pool in (self.k, self.v):
            pool[:3] = torch.nan
            if self.wrapped > 0:
                pool[self.wrapped] = torch.nan
        self.numbers = torch.Generator().manual_seed(3)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.numbers).half()

    def fill_last(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Put random K and V into the last block, and return them [block_size, heads, head_dim]."""
        for pool in (self.k, self.v):
            pool[self.last] = self.normal(self.block_size, NUM_KV_HEADS, HEAD_DIM)
        return self.k[self.last].clone(), self.v[self.last].clone()


@pytest.fixture(params=[(limit, size) for limit in LIMITS for size in BLOCK_SIZES], ids=str)
def pools(request: pytest.FixtureRequest) -> LargePools:
    return LargePools(*request.param)


@contextmanager
def watched() -> Iterator[MemoryGuard]:
    """Every access in range, no integer of 32 bits wrapped."""
    with int32_checks(), MemoryGuard() as guard:
        yield guard


def attention_of_one(query: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of one query token [heads, head_dim] to all of k and v, in float64, scale 1/8."""
    scores = torch.einsum("hd,thd->ht", query.double(), k.double()) / 8
    return torch.einsum("ht,thd->hd", scores.softmax(dim=1), v.double())


def test_the_pool_is_not_backed_by_memory() -> None:
    pool = empty_pool(2**32 // ROW, 1)
    assert pool.numel() == 2**32
    assert pool[-1].sum() == 0


def test_store_kv(pools: LargePools) -> None:
    key, value = (pools.normal(1, NUM_KV_HEADS, HEAD_DIM) for _ in "kv")
    slot = torch.tensor([pools.last * pools.block_size + pools.block_size - 1])
    with watched():
        store_kv(key, value, pools.k, pools.v, slot)
    assert torch.equal(pools.k[-1, -1], key[0])
    assert torch.equal(pools.v[-1, -1], value[0])


@pytest.mark.parametrize("num_splits", [1, 2])
def test_paged_decode(pools: LargePools, num_splits: int) -> None:
    k, v = pools.fill_last()
    query = pools.normal(1, NUM_KV_HEADS, HEAD_DIM)
    table = torch.tensor([[pools.last]], dtype=torch.int32)
    lens = torch.tensor([pools.block_size], dtype=torch.int32)
    split = SplitPlan(num_splits, min_split_tokens=1)
    with watched():
        out = paged_decode(query, pools.k, pools.v, table, lens, scale=1 / 8, split=split)
    torch.testing.assert_close(out[0].double(), attention_of_one(query[0], k, v), atol=2e-3, rtol=0)


def test_paged_prefill(pools: LargePools) -> None:
    k, v = pools.fill_last()
    num_tokens = pools.block_size
    query = pools.normal(num_tokens, NUM_KV_HEADS, HEAD_DIM)
    table = torch.tensor([[pools.last]], dtype=torch.int32)
    lens = torch.tensor([num_tokens], dtype=torch.int32)
    starts = torch.tensor([0, num_tokens], dtype=torch.int32)
    with watched():
        out = paged_prefill(query, pools.k, pools.v, table, starts, lens, scale=1 / 8)
    for token in range(num_tokens):
        expected = attention_of_one(query[token], k[: token + 1], v[: token + 1])
        torch.testing.assert_close(out[token].double(), expected, atol=2e-3, rtol=0)


def test_contiguous_decode(pools: LargePools) -> None:
    """The second of two sequences lies behind the limit; the first has no tokens."""
    num_slots = (pools.last + 1) * pools.block_size // 2
    rows = [
        pool.view(-1, NUM_KV_HEADS, HEAD_DIM)[: 2 * num_slots].view(2, num_slots, *pool.shape[2:])
        for pool in (pools.k, pools.v)
    ]
    for row in rows:
        row[1, :1] = pools.normal(1, NUM_KV_HEADS, HEAD_DIM)
    query = pools.normal(2, NUM_KV_HEADS, HEAD_DIM)
    with watched():
        out = contiguous_decode(query, *rows, torch.tensor([0, 1], dtype=torch.int32), scale=1 / 8)
    assert torch.equal(out[1], rows[1][1, 0])
    assert not out[0].any()


def test_copy_blocks(pools: LargePools) -> None:
    k, v = pools.fill_last()
    pairs = torch.tensor([[pools.last, 0]])
    with watched():
        copy_blocks(pools.k, pools.v, pairs)
    assert torch.equal(pools.k[0], k)
    assert torch.equal(pools.v[0], v)
    with watched():
        copy_blocks(pools.k, pools.v, torch.tensor([[0, pools.last - 1]]))
    assert torch.equal(pools.k[pools.last - 1], k)
    assert torch.equal(pools.v[pools.last - 1], v)


def test_swap_blocks(pools: LargePools) -> None:
    k, v = pools.fill_last()
    host = torch.zeros(1, 2, *pools.k.shape[1:], dtype=torch.float16)
    with watched():
        swap_blocks(pools.k, pools.v, host, [SwapMove(True, pools.last, 0)])
    assert torch.equal(host[0, 0], k)
    assert torch.equal(host[0, 1], v)
    with watched():
        swap_blocks(pools.k, pools.v, host, [SwapMove(False, pools.last - 1, 0)])
    assert torch.equal(pools.k[pools.last - 1], k)
    assert torch.equal(pools.v[pools.last - 1], v)
