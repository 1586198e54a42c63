"""Pools of more than 2^31 and 2^32 elements: offsets must be 64 bits wide everywhere.

An offset of 32 bits that wraps is out of range, or reads zeros where the test wrote numbers.
vllm-project/vllm PR#1514 (K01), flashinfer-ai/flashinfer PR#3136 (K04), ROCm/aiter #2608 (K07).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from untouched_memory import untouched_contiguous

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
# What 32 bits reach, signed and unsigned.
LIMITS = {"2^31": 2**31, "2^32": 2**32}
# (block size, order of the dimensions block, slot, head, dim in memory). By head or by slot the blocks
# of one head, or of one slot, lie together.
SHAPES = {
    "NHD, 16 slots": (16, (0, 1, 2, 3)),
    "NHD, 1 slot": (1, (0, 1, 2, 3)),
    "by head": (16, (2, 0, 1, 3)),
    "by slot": (16, (1, 0, 2, 3)),
}


class LargePools:
    """K and V pools whose last block's last row lies behind a limit."""

    def __init__(self, limit: int, block_size: int, order: tuple[int, ...]) -> None:
        self.block_size = block_size
        # By head or slot, the second of 2 or 16 parts must begin behind the limit, or near it.
        parts = {0: 1, 1: block_size - 1, 2: NUM_KV_HEADS - 1}[order[0]]
        in_parts = {0: block_size * ROW, 1: ROW, 2: block_size * HEAD_DIM}[order[0]]
        self.last = limit // (parts * in_parts) + 2
        shape = (self.last + 1, block_size, NUM_KV_HEADS, HEAD_DIM)
        self.k, self.v = (untouched_contiguous(shape, torch.float16, order) for _ in "kv")
        last_row = sum(stride * (n - 1) for stride, n in zip(self.k.stride(), shape, strict=True))
        assert last_row > limit
        self._numbers = torch.Generator().manual_seed(3)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._numbers).half()

    def fill_last(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Put random K and V into the last block, and return them [block_size, heads, head_dim]."""
        for pool in (self.k, self.v):
            pool[self.last] = self.normal(self.block_size, NUM_KV_HEADS, HEAD_DIM)
        return self.k[self.last].clone(), self.v[self.last].clone()


@pytest.fixture(params=LIMITS)
def limit(request: pytest.FixtureRequest) -> int:
    return LIMITS[request.param]


@pytest.fixture(params=SHAPES)
def pools(request: pytest.FixtureRequest, limit: int) -> LargePools:
    return LargePools(limit, *SHAPES[request.param])


@contextmanager
def watched() -> Iterator[MemoryGuard]:
    """Every access in range, no integer of 32 bits wrapped."""
    with int32_checks(), MemoryGuard() as guard:
        yield guard


def attention_of_one(query: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of one query token [heads, head_dim] to all of k and v, in float64, scale 1/8."""
    scores = torch.einsum("hd,thd->ht", query.double(), k.double()) / 8
    return torch.einsum("ht,thd->hd", scores.softmax(dim=1), v.double())


def assert_near(out: torch.Tensor, expected: torch.Tensor) -> None:
    # Four roundings of fp16 (2^-11 each) of outputs of about 1.
    torch.testing.assert_close(out.double(), expected, atol=2e-3, rtol=0)


def test_pools_are_not_backed_by_memory() -> None:
    pool = untouched_contiguous((2**32 // ROW, 1, NUM_KV_HEADS, HEAD_DIM), torch.float16)
    assert pool.numel() == 2**32
    assert pool.is_contiguous()
    assert not pool[-1].any()


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
    assert_near(out[0], attention_of_one(query[0], k, v))


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
        assert_near(out[token], attention_of_one(query[token], k[: token + 1], v[: token + 1]))


def test_contiguous_decode(limit: int) -> None:
    """The last of two sequences lies behind the limit; the first has no tokens."""
    shape = (2, limit // ROW + 1, NUM_KV_HEADS, HEAD_DIM)
    k, v = (untouched_contiguous(shape, torch.float16) for _ in "kv")
    generator = torch.Generator().manual_seed(3)
    for tensor in (k, v):
        tensor[1, :1] = torch.randn(1, NUM_KV_HEADS, HEAD_DIM, generator=generator).half()
    query = torch.randn(2, NUM_KV_HEADS, HEAD_DIM, generator=generator).half()
    with watched():
        out = contiguous_decode(query, k, v, torch.tensor([0, 1], dtype=torch.int32), scale=1 / 8)
    # One key: its V, exactly.
    assert torch.equal(out[1], v[1, 0])
    assert not out[0].any()


def test_copy_blocks(pools: LargePools) -> None:
    k, v = pools.fill_last()
    with watched():
        copy_blocks(pools.k, pools.v, torch.tensor([[pools.last, 0]]))
        copy_blocks(pools.k, pools.v, torch.tensor([[0, pools.last - 1]]))
    for block in (0, pools.last - 1):
        assert torch.equal(pools.k[block], k)
        assert torch.equal(pools.v[block], v)


def test_swap_blocks(pools: LargePools) -> None:
    k, v = pools.fill_last()
    host = torch.zeros(1, 2, *pools.k.shape[1:], dtype=torch.float16)
    with watched():
        swap_blocks(pools.k, pools.v, host, [SwapMove(True, pools.last, 0)])
        assert torch.equal(host[0, 0], k)
        assert torch.equal(host[0, 1], v)
        swap_blocks(pools.k, pools.v, host, [SwapMove(False, pools.last - 1, 0)])
    assert torch.equal(pools.k[pools.last - 1], k)
    assert torch.equal(pools.v[pools.last - 1], v)
