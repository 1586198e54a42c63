"""Scores far from 0 cost no digits: a softmax depends on differences, and so must its error.

All scores of a case have the same large part, which fp32 holds exactly beside the small one. It
cancels, so the reference is that of the small parts alone.
"""

from typing import Any

import pytest
import torch
from log_inputs import FP32, NAN, Paged, decode, error_of, ints, normal, prefill, tables

from kvtwin.gpu.arguments import SplitPlan

LENS, BLOCKS = (37, 12), ([2, 0, 4], [1])
# 2^13 is what scores of unnormalised heads reach; 2^20 is beyond fp16, and leaves fp32 3 bits below 1.
LARGE_PARTS = pytest.mark.parametrize("large", [2.0**13, -(2.0**13), 2.0**20])


class LargeScores:
    """Two sequences of K (large / 1024, small, 0, ...) and queries of (1024, 1, 0, ...)."""

    def __init__(self, large: float, dtype: torch.dtype) -> None:
        self.pool = Paged(5, 16, num_kv_heads=1, head_dim=32, dtype=dtype)
        self.large, self.smalls, self.values = large, [], []
        for seq, (context_len, blocks) in enumerate(zip(LENS, BLOCKS, strict=True)):
            _, value = self.pool.put(seq, context_len, blocks)
            small = (8 * normal(seq + 7, context_len)).round() / 8  # eighths
            for token in range(context_len):
                row = self.pool.k[blocks[token // 16], token % 16, 0]
                row.zero_()
                row[0], row[1] = large / 1024, small[token]
            self.smalls.append(small)
            self.values.append(value)

    def query(self, num_tokens: int) -> torch.Tensor:
        query = torch.zeros(num_tokens, 2, 32, dtype=self.pool.dtype)
        query[..., 0], query[..., 1] = 1024.0, 1.0
        return query

    def error(self, out: torch.Tensor, seq: int, sink: float | None = None) -> float:
        """Distance from float64 attention to the small parts."""
        keys = torch.zeros(LENS[seq], 1, 32)
        keys[:, 0, 0] = self.smalls[seq]
        sinks = None if sink is None else torch.full((2,), sink)
        query = torch.ones(len(out), 2, 32)
        return error_of(out, query, keys, self.values[seq], scale=1.0, sinks=sinks)


# Of outputs of about 1: fp32 sums, and half a unit in the last place of fp16, twice (weights, output).
TOLERANCES = {torch.float32: FP32 / 10, torch.float16: 2.0**-10}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCES, ids=["fp32", "fp16"])


@LARGE_PARTS
@DTYPES
@pytest.mark.parametrize("num_splits", [1, 2, 3])
def test_paged_decode(ops: Any, num_splits: int, dtype: torch.dtype, large: float) -> None:
    scores = LargeScores(large, dtype)
    split = SplitPlan(num_splits, min_split_tokens=1)
    arguments = (scores.pool, scores.query(2), tables(*BLOCKS), ints(*LENS))
    out = decode(ops, *arguments, scale=1.0, split=split)
    for seq in range(2):
        assert scores.error(out[seq : seq + 1], seq) < TOLERANCES[dtype]
    sinks = torch.full((2,), large + 2.0)  # as much as the largest small parts
    out = decode(ops, *arguments, scale=1.0, split=split, sinks=sinks)
    for seq in range(2):
        assert scores.error(out[seq : seq + 1], seq, 2.0) < TOLERANCES[dtype]


@LARGE_PARTS
@DTYPES
def test_paged_prefill(ops: Any, dtype: torch.dtype, large: float) -> None:
    scores = LargeScores(large, dtype)
    arguments = (scores.query(9), tables(*BLOCKS), ints(0, 5, 9), ints(*LENS))
    for sink in (None, 2.0):
        sinks = None if sink is None else torch.full((2,), large + sink)
        out = prefill(ops, scores.pool, *arguments, scale=1.0, sinks=sinks)
        for seq, rows in enumerate((slice(0, 5), slice(5, 9))):
            assert scores.error(out[rows], seq, sink) < TOLERANCES[dtype]


@pytest.mark.parametrize("num_splits", [1, 3])
def test_paged_decode_and_paged_prefill_of_values_at_the_end_of_fp16(
    ops: Any, num_splits: int
) -> None:
    """Sums of 65,504, the largest number of fp16, are beyond it; their mean is not."""
    pool = Paged(4, 16, dtype=torch.float16)
    pool.put(0, 40, [2, 0, 3])
    pool.v.fill_(65504.0)
    query, table, split = torch.zeros(1, 4, 64).half(), tables([2, 0, 3]), SplitPlan(num_splits, 1)
    assert (decode(ops, pool, query, table, ints(40), split=split) == 65504.0).all()
    assert (prefill(ops, pool, query, table, ints(0, 1), ints(40)) == 65504.0).all()


@pytest.mark.parametrize("large", [0.0, 2.0**13, -(2.0**20)])
def test_merge_partials(ops: Any, large: float) -> None:
    """Logarithms of eighths beside the large part, which is what fp32 holds of them."""
    lse = (8 * normal(1, 3, 2, 4)).round() / 8
    parts = normal(2, 3, 2, 4, 16)
    out = ops.merge_partials(parts, lse + large, out=torch.full((3, 2, 16), NAN))
    wanted = (parts.double() * lse.double().softmax(2)[..., None]).sum(2)
    assert (out.double() - wanted).abs().max() < FP32 / 10


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_paged_decode_beyond_fp32_is_not_taken_for_an_empty_part(on: dict[str, Any]) -> None:
    """q . k of two numbers of 1e30 is infinite: NaN, split or not, and never 0 or another part's."""
    pool = Paged(2, 16, num_kv_heads=1, head_dim=16)
    pool.put(0, 20, [1, 0])
    pool.k[1, 3] = 1e30
    query = torch.full((1, 1, 16), 1e30)
    for num_splits in (1, 2):
        out = decode(
            on["triton-interpret"].ops,
            pool,
            query,
            tables([1, 0]),
            ints(20),
            split=SplitPlan(num_splits, 1),
        )
        assert out.isnan().all()


def test_merge_partials_shows_a_logarithm_that_is_not_a_number(ops: Any) -> None:
    parts, lse = normal(2, 3, 2, 4, 16), normal(1, 3, 2, 4)
    lse[1, 0, 2] = NAN
    lse[2, 1] = torch.tensor([NAN, -torch.inf, torch.inf, -torch.inf])
    out = ops.merge_partials(parts, lse, out=torch.zeros(3, 2, 16))
    is_spoilt = torch.tensor([[False, False], [True, False], [False, True]])
    assert torch.equal(out.isnan().all(2), is_spoilt)
    assert torch.equal(out.isnan().any(2), is_spoilt)
