"""More bugs of other projects' attention kernels: layouts, shapes, splits, masks, workspaces.

Every test names the source of its entry, and the entry's number in the log they were collected in.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from log_inputs import FP32, NAN, Paged, decode, error_of, ints, normal, prefill, tables
from untouched_memory import untouched_contiguous

from kvtwin.gpu.arguments import SplitPlan
from kvtwin.gpu.check import Case, matrix
from kvtwin.gpu.check.attention import attention_with
from kvtwin.gpu.check.inputs import make_inputs


def as_interleaved(pool: Paged) -> None:
    both = torch.stack([pool.k, pool.v], dim=1)
    pool.k, pool.v = both[:, 0], both[:, 1]


def as_heads_first(pool: Paged) -> None:
    pool.k, pool.v = (
        tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (pool.k, pool.v)
    )


@pytest.mark.parametrize("layout", [as_interleaved, as_heads_first, lambda pool: None])
@pytest.mark.parametrize("num_kv_heads", [4, 8, 16])
def test_layouts_by_strides(ops: Any, layout: Callable[[Paged], None], num_kv_heads: int) -> None:
    """ROCm/aiter PR#3498, PR#3492 (K35): the block stride of interleaved K and V, rebuilt wrong;
    vllm-project/vllm #49012 (K37): block size from dimension 1, right in one layout only."""
    pool = Paged(4, 16, num_kv_heads=num_kv_heads, head_dim=16)
    key, value = pool.put(0, 21, [3, 1])
    layout(pool)
    query = pool.query(5, 1)
    out = decode(ops, pool, query, tables([3, 1]), ints(21))
    assert error_of(out, query, key, value) < FP32


@pytest.mark.parametrize("num_splits", [1, 2])
def test_slices_of_one_projection(ops: Any, num_splits: int) -> None:
    """flashinfer-ai/flashinfer #311; sgl-project/sglang PR#7462; Dao-AILab/flash-attention PR#2670;
    flagos-ai/FlagGems #5235: q, k and v of one tensor, and outputs with heads first, taken as contiguous."""
    pool = Paged(4, 4)
    projected = normal(1, 9, 4 + 2 + 2, 64)
    query, key, value = projected.split([4, 2, 2], dim=1)
    slots = torch.tensor([4 * block + slot for block in (3, 0, 2) for slot in range(4)][:9])
    ops.store_kv(key, value, pool.k, pool.v, slots)
    out = torch.full((4, 9, 64), NAN).transpose(0, 1)
    prefill(ops, pool, query, tables([3, 0, 2]), ints(0, 9), ints(9), out=out)
    assert error_of(out, query, key, value) < FP32
    last = torch.full((4, 1, 64), NAN).transpose(0, 1)
    split = SplitPlan(num_splits, 1)
    decode(ops, pool, query[8:], tables([3, 0, 2]), ints(9), out=last, split=split)
    assert error_of(last, query[8:], key, value) < FP32


def test_pages_padded_by_a_row(ops: Any) -> None:
    """vllm-project/vllm #54877 (K41): a page stride longer than the page's tokens."""
    pool = Paged(3, 65)  # blocks of 64 tokens, and a row of NaN behind each
    pool.block_size = 64
    key, value = pool.put(0, 130, [2, 0, 1])
    pool.k, pool.v = pool.k[:, :64], pool.v[:, :64]
    query = pool.query(5, 1)
    out = decode(ops, pool, query, tables([2, 0, 1]), ints(130))
    assert error_of(out, query, key, value) < FP32


@pytest.mark.parametrize("group", [*range(1, 9), 12, 16, 71])
@pytest.mark.parametrize("query_len", [1, 5])
def test_head_ratios(ops: Any, group: int, query_len: int) -> None:
    """vllm-project/vllm PR#18100 (K43): tiles of ratios that are no power of two;
    flashinfer-ai/flashinfer #258, #996, PR#2895, PR#3563 (K44): ratios missing from a table."""
    pool = Paged(4, 4, num_kv_heads=1, head_dim=16)
    key, value = pool.put(0, 9, [3, 1, 0])
    query = pool.query(5, query_len, group)
    if query_len == 1:
        out = decode(ops, pool, query, tables([3, 1, 0]), ints(9))
    else:
        out = prefill(ops, pool, query, tables([3, 1, 0]), ints(0, 5), ints(9))
    assert error_of(out, query, key, value) < FP32


@pytest.mark.parametrize("head_dim", [13, 20, 24, 80, 96, 112, 120, 192, 256])
def test_head_dims(guarded: Any, head_dim: int) -> None:
    """vllm-project/vllm #4127, PR#4573; sgl-project/sglang PR#1281 (K46): unmasked columns read the
    next head; ByteDance-Seed/Triton-distributed #200 (K47): 96 and 192 on the wrong axis."""
    pool = Paged(3, 4, head_dim=head_dim)
    key, value = pool.put(0, 6, [2, 0])
    assert pool.k.stride(2) == head_dim
    query = pool.query(5, 1)
    out = decode(guarded, pool, query, tables([2, 0]), ints(6))
    assert error_of(out, query, key, value) < FP32


@pytest.mark.parametrize("block_size", [1, 2, 4, 8])
def test_small_blocks(ops: Any, block_size: int) -> None:
    """vllm-project/vllm #41339 (K51): blocks under 16 slots fell to another backend."""
    pool = Paged(24, block_size)
    blocks = torch.randperm(24, generator=torch.Generator().manual_seed(1)).tolist()
    key, value = pool.put(0, 21, blocks)
    query = pool.query(5, 1)
    out = decode(ops, pool, query, tables(blocks), ints(21))
    assert error_of(out, query, key, value) < FP32


def test_splits_of_mixed_queries(ops: Any) -> None:
    """Dao-AILab/flash-attention #1217, #1647 (K61): paged, variable length and splits disagreed."""
    pool = Paged(30, 5, head_dim=16)
    lens, query_lens = (40, 60, 40), (1, 5, 40)
    rows = [list(range(10 * seq, 10 * seq + 10)) for seq in range(3)]
    rows[1] = [*rows[1], 28, 29]
    sequences = [pool.put(seq, lens[seq], rows[seq]) for seq in range(3)]
    query = pool.query(5, sum(query_lens))
    starts = ints(0, 1, 6, 46)
    out = prefill(ops, pool, query, tables(*rows), starts, ints(*lens))
    for seq, (key, value) in enumerate(sequences):
        own = slice(int(starts[seq]), int(starts[seq + 1]))
        assert error_of(out[own], query[own], key, value) < FP32
    last = torch.tensor([0, 5, 45])
    for num_splits in (1, 2, 3, 16, 32):
        split = SplitPlan(num_splits, 1)
        decoded = decode(ops, pool, query[last], tables(*rows), ints(*lens), split=split)
        assert (decoded - out[last]).abs().max() < 2e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("kernel", ["paged_decode", "contiguous_decode", "paged_prefill"])
def test_every_feature_changes_every_dtype(ops: Any, kernel: str, dtype: str) -> None:
    """kekzl/imp #1345 (K64): sinks on one dtype's path only; EricLBuehler/mistral.rs #2094 (K68):
    decode without the window."""
    case = Case(
        kernel,
        dtype,
        context_lens=(40,),
        query_lens=(9,) if kernel == "paged_prefill" else (),
        window=17,
        soft_cap=2.0,
        sinks=True,
    )
    inputs = make_inputs(replace(case, window=0))  # nothing freed in front of the window
    assert inputs.sinks is not None
    inputs.sinks.add_(3.0)  # about as much as all keys together
    out = attention_with(case, ops, inputs, torch.empty_like(inputs.query))
    for without in ({"window": 0}, {"window": 16}, {"soft_cap": 0.0}, {"sinks": None}):
        other = attention_with(case, ops, inputs, torch.empty_like(inputs.query), **without)
        changed = (other.double() - out.double()).abs().amax((0, 2))
        # Some heads care little for one key; rounding changes nothing, the inputs are the same.
        assert changed.min() > 0.002, (without, changed)
        assert changed.max() > 0.02, (without, changed)


@pytest.mark.parametrize("window", [4, 16])
def test_the_oldest_key_of_a_window(ops: Any, window: int) -> None:
    """sgl-project/sglang PR#32087; ModelTC/LightLLM PR#1311, PR#1312; tokenspeed PR#578 (K66): a
    window's radius and its size differ by one; prefill and decode disagreed."""
    for context_len in (window - 1, window, window + 1, 5 * window):
        pool = Paged(12, 8, num_kv_heads=1, head_dim=128)
        pool.put(0, context_len, list(range(12)))
        for token in range(context_len):
            pool.v[token // 8, token % 8] = torch.eye(128)[token]
        query = pool.query(5, 1)
        arguments = (tables(list(range(12))), ints(context_len))
        out = decode(ops, pool, query, *arguments, window=window)
        seen = (torch.arange(128) < context_len) & (torch.arange(128) >= context_len - window)
        assert torch.equal(out[0, 0] > 0, seen)
        filled = prefill(ops, pool, query, arguments[0], ints(0, 1), arguments[1], window=window)
        assert torch.allclose(out, filled, rtol=0, atol=1e-6)


@pytest.mark.parametrize("query_len", [1, 5, 9])
def test_causal_from_the_end(ops: Any, query_len: int) -> None:
    """gittensor-ai-lab/sparkinfer #3 (K70): the causal mask aligned at the start of the context."""
    pool = Paged(4, 4)
    key, value = pool.put(0, 9, [3, 0, 2])
    query = pool.query(5, query_len)
    out = prefill(ops, pool, query, tables([3, 0, 2]), ints(0, query_len), ints(9))
    assert error_of(out, query, key, value) < FP32


def test_a_chunk_sees_what_is_written(ops: Any) -> None:
    """GeeeekExplorer/nano-vllm PR#213 (K71): a chunk read KV of chunks to come."""
    pool = Paged(8, 8)
    blocks = [5, 3, 7, 1, 0]
    keys, values, done = [], [], 0
    for seed, chunk in enumerate((16, 16, 8)):
        key, value = pool.put(seed, chunk, blocks, first=done)
        keys.append(key)
        values.append(value)
        done += chunk
        query = pool.query(seed + 5, chunk)
        out = prefill(ops, pool, query, tables(blocks), ints(0, chunk), ints(done))
        assert error_of(out, query, torch.cat(keys), torch.cat(values)) < FP32


def test_a_workspace_that_was_used_before(on: dict[str, Any]) -> None:
    """flashinfer-ai/flashinfer PR#4430, #4794, #5176 (K81): a padded grid read entries of an earlier,
    larger batch."""
    ops = on["triton-interpret"].ops
    pool = Paged(16, 4)
    rows = [list(range(4 * seq, 4 * seq + 4)) for seq in range(4)]
    sequences = [pool.put(seq, 16, rows[seq]) for seq in range(4)]
    query, split = pool.query(5, 4), SplitPlan(4, 1)
    workspace = torch.full((4 * 4 * 4 * 80,), NAN)
    decode(ops, pool, query, tables(*rows), ints(*[16] * 4), split=split, workspace=workspace)
    workspace.view(torch.int32).fill_(0x7F7F7F7F)
    small = ints(3, 0)
    fresh = decode(ops, pool, query[:2], tables(*rows[:2]), small, split=split)
    reused = decode(
        ops, pool, query[:2], tables(*rows[:2]), small, split=split, workspace=workspace
    )
    assert torch.equal(fresh, reused)
    key, value = sequences[0]
    assert error_of(reused[:1], query[:1], key[:3], value[:3]) < FP32


def test_the_matrix_has_fp32_rows_of_every_width() -> None:
    """vllm-project/vllm PR#6373 (K38): a packing factor that is right for 2-byte types only."""
    cases = matrix(("paged_decode", "store_kv", "copy_blocks"))
    assert {case.kernel for case in cases if case.dtype == "float32"} == {
        "paged_decode",
        "store_kv",
        "copy_blocks",
    }


@pytest.mark.parametrize("id_below", [0, 1])
def test_two_blocks_on_either_side_of_32_bits(guarded: Any, id_below: int) -> None:
    """vllm-project/vllm #50427, PR#50483 (K02): interleaved K and V, so that the limit on ids is half.

    The last block below 2^31 elements and the first above it hold the same numbers.
    """
    block_elements = 2 * 16 * 2 * 64
    limit = 2**31 // block_elements
    both = untouched_contiguous((limit + 1, 2, 16, 2, 64), torch.float16)
    assert both.stride(0) == block_elements
    pool = Paged(1, 16, dtype=torch.float16)
    key, value = pool.put(0, 16, [0])
    for block in (limit - 1, limit):
        both[block, 0], both[block, 1] = key, value
    pool.k, pool.v = both[:, 0], both[:, 1]
    query = pool.query(5, 1)
    out = decode(guarded, pool, query, tables([limit - id_below]), ints(16))
    assert error_of(out, query, key, value) < 2e-3
