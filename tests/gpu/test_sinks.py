"""Sinks: counted once whatever is split, and rounded once, when they are stored in 16 bits."""

from typing import Any

import pytest
import torch
from log_inputs import FP32, Paged, decode, error_of, ints, normal, prefill, tables

from kvtwin.gpu.arguments import SplitPlan

TYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])


def logits(dtype: torch.dtype) -> torch.Tensor:
    """About as much as all keys, and no number that 16 bits hold when it is multiplied or added."""
    return (normal(9, 4) + 3.3).to(dtype)


@TYPES
@pytest.mark.parametrize("num_splits", [1, 3])
def test_paged_decode(ops: Any, dtype: torch.dtype, num_splits: int) -> None:
    pool, sinks = Paged(4, 16), logits(dtype)
    key, value = pool.put(0, 40, [2, 0, 3])
    query, split = pool.query(5, 1), SplitPlan(num_splits, 1)
    out = decode(ops, pool, query, tables([2, 0, 3]), ints(40), sinks=sinks, split=split)
    assert error_of(out, query, key, value, sinks=sinks) < FP32 / 10


@TYPES
def test_paged_prefill(ops: Any, dtype: torch.dtype) -> None:
    pool, sinks = Paged(4, 16), logits(dtype)
    key, value = pool.put(0, 40, [2, 0, 3])
    query = pool.query(5, 7)
    out = prefill(ops, pool, query, tables([2, 0, 3]), ints(0, 7), ints(40), sinks=sinks)
    assert error_of(out, query, key, value, sinks=sinks) < FP32 / 10


@TYPES
def test_merge_partials(ops: Any, dtype: torch.dtype) -> None:
    parts, lse, sinks = normal(1, 3, 4, 2, 16), normal(2, 3, 4, 2) + 3, logits(dtype)
    out = ops.merge_partials(parts, lse, sinks=sinks, out=torch.empty(3, 4, 16))
    column = sinks.double()[None, :, None].expand(3, -1, 1)
    weights = torch.cat([lse.double(), column], 2).softmax(2)[..., :2]
    assert (out - (parts.double() * weights[..., None]).sum(2)).abs().max() < FP32 / 10


@pytest.mark.parametrize("logit", [-1e4, 200.0, 1e4])
def test_paged_decode_with_sinks_far_from_all_scores(ops: Any, logit: float) -> None:
    """One that weighs nothing, and ones beside which no key weighs anything that fp32 holds."""
    pool, sinks = Paged(4, 16), torch.full((4,), logit)
    key, value = pool.put(0, 40, [2, 0, 3])
    query = pool.query(5, 1)
    for num_splits in (1, 3):
        split = SplitPlan(num_splits, 1)
        out = decode(ops, pool, query, tables([2, 0, 3]), ints(40), sinks=sinks, split=split)
        assert error_of(out, query, key, value, sinks=sinks) < FP32 / 10


@pytest.mark.parametrize("soft_cap", [0.0, 3.0])
@pytest.mark.parametrize("context_len", [0, 1, 16, 17, 40])
def test_paged_decode_and_paged_prefill_count_a_sink_once(
    ops: Any, context_len: int, soft_cap: float
) -> None:
    """ROCm/rocm-libraries #12227: a sink counted twice where the first splits are empty, or not at all,
    and scaled or capped like a score. With q = 0 and V = 1 the output is n / (n + exp(sink))."""
    pool, sinks = Paged(4, 16), torch.tensor([0.5, -2.0, 4.0, 8.0])
    pool.put(0, context_len, [2, 0, 3])
    pool.v.nan_to_num_(nan=1.0).fill_(1.0)
    query, table, lens = torch.zeros(1, 4, 64), tables([2, 0, 3]), ints(context_len)
    options = {"sinks": sinks, "soft_cap": soft_cap, "scale": 0.125}
    for window in (0, 5):
        num_seen = min(context_len, window or context_len)
        wanted = (num_seen / (num_seen + sinks.exp()))[:, None].expand(-1, 64)
        outputs = [
            decode(ops, pool, query, table, lens, window=window, split=SplitPlan(n, 1), **options)
            for n in (1, 2, 3, 5)
        ]
        if context_len:
            starts = ints(0, 1)
            outputs.append(prefill(ops, pool, query, table, starts, lens, window=window, **options))
        for out in outputs:
            assert (out[0] - wanted).abs().max() < FP32 / 10
