"""Bugs of other projects' attention kernels, each with the small input that shows it.

Every test names the source of its entry, and the entry's number in the log they were collected in.
Here: what lies behind a context, rows of padding, tables. Errors are bounded for fp32: a slot too
few or too many changes outputs by 0.01 or more.
"""

from typing import Any

import pytest
import torch
from log_inputs import FP32, NAN, Paged, decode, error_of, ints, normal, prefill, tables

from kvtwin.gpu.arguments import SplitPlan
from kvtwin.gpu.tools.guard import MemoryFault, MemoryGuard


@pytest.mark.parametrize("context_len", [1, 15, 17])
def test_nan_behind_the_context(ops: Any, context_len: int) -> None:
    """vllm-project/vllm PR#936 (K08): weights of 0 times V that is NaN."""
    pool = Paged(4, 16)
    key, value = pool.put(0, context_len, [2, 1])
    query = pool.query(5, 1)
    out = decode(ops, pool, query, tables([2, 1]), ints(context_len))
    assert error_of(out, query, key, value) < FP32


def test_nan_behind_contexts_of_one_tile(ops: Any) -> None:
    """Dao-AILab/flash-attention #1745, #2374 (K09): whole tiles loaded past cache_seqlens."""
    for lens, rows in (((1, 3), 3), ((32, 64, 96, 48), 128)):
        k = torch.full((len(lens), rows, 1, 64), NAN)
        v = k.clone()
        for seq, context_len in enumerate(lens):
            k[seq, :context_len] = normal(seq, context_len, 1, 64)
            v[seq, :context_len] = normal(seq + 50, context_len, 1, 64)
        query = normal(9, len(lens), 2, 64)
        out = ops.contiguous_decode(query, k, v, ints(*lens), scale=0.125)
        for seq, context_len in enumerate(lens):
            rows_of = (tensor[seq, :context_len] for tensor in (k, v))
            assert error_of(out[seq : seq + 1], query[seq : seq + 1], *rows_of) < FP32


def test_one_tensor_as_k_and_v(ops: Any) -> None:
    """flashinfer-ai/flashinfer #941 (K10): NaN rows of a last page, K and V the same tensor."""
    pool = Paged(6, 4)
    key, _ = pool.put(0, 13, [5, 0, 3, 2])
    pool.v = pool.k
    assert pool.k[2, 1:].isnan().all()
    query = pool.query(5, 1)
    out = decode(ops, pool, query, tables([5, 0, 3, 2]), ints(13))
    assert error_of(out, query, key, key) < FP32


def test_a_window_does_not_read_its_padding_block(ops: Any) -> None:
    """sgl-project/sglang PR#32477 (K12): padding rows left NaN in the block that pads tables."""
    pool = Paged(10, 4)
    key, value = pool.put(0, 22, [6, 7, 8, 4, 2, 5])
    rows = torch.full((2, 2, 64), NAN)
    ops.store_kv(rows, rows, pool.k, pool.v, torch.tensor([0, 1]))
    query = pool.query(5, 1)
    out = decode(ops, pool, query, tables([0, 0, 0, 4, 2, 5]), ints(22), window=10)
    assert error_of(out, query, key, value, window=10) < FP32


def test_padded_rows_have_no_split(ops: Any) -> None:
    """vllm-project/vllm PR#49054 (K15): a graph-padded row has no chunk to merge."""
    pool = Paged(6, 4)
    sequences = [pool.put(0, 7, [1, 2]), pool.put(1, 4, [3])]
    query = pool.query(5, 4)
    table = tables([1, 2], [3], [], [], fill=0x7F7F7F7F)
    split = SplitPlan(4, 1)
    out = decode(ops, pool, query, table, ints(7, 4, 0, 0), split=split)
    alone = decode(ops, pool, query[:2], table[:2], ints(7, 4), split=split)
    assert (out[2:] == 0).all()
    assert torch.equal(out[:2], alone)
    for seq, (key, value) in enumerate(sequences):
        assert error_of(out[seq : seq + 1], query[seq : seq + 1], key, value) < FP32


def test_garbage_rows_of_padding_are_not_followed(guarded: Any) -> None:
    """sgl-project/sglang PR#1094, PR#1469, PR#1782 (K18): garbage in padded rows dereferenced."""
    pool = Paged(4, 4)
    sequences = [pool.put(seed, 3, [seed]) for seed in range(3)]
    garbage = [[2**31 - 1], [-(2**31)], [4], [-1], [10**9]]
    query = pool.query(5, 8)
    out = decode(guarded, pool, query, tables([0], [1], [2], *garbage), ints(3, 3, 3, *[0] * 5))
    assert (out[3:] == 0).all()
    for seq, (key, value) in enumerate(sequences):
        assert error_of(out[seq : seq + 1], query[seq : seq + 1], key, value) < FP32


@pytest.mark.parametrize("context_len", range(1, 18))
def test_contexts_shorter_than_a_tile(ops: Any, context_len: int) -> None:
    """flashinfer-ai/flashinfer PR#3106 (K20): under 16 tokens of KV, pages were not read."""
    pool = Paged(4, 16)
    key, value = pool.put(0, context_len, [3, 1])
    query_len = max(1, context_len - 1)
    query = pool.query(5, query_len, group=7)
    arguments = (tables([3, 1]), ints(0, query_len), ints(context_len))
    out = prefill(ops, pool, query, *arguments)
    assert error_of(out, query, key, value) < FP32


def test_equal_content_gives_equal_output(ops: Any) -> None:
    """flashinfer-ai/flashinfer #725 (K21): two one-token sequences, the same content, two pages."""
    pool = Paged(3, 2)
    pool.put(0, 1, [1])
    pool.put(0, 1, [2])
    query = pool.query(5, 1).expand(2, -1, -1).contiguous()
    out = decode(ops, pool, query, tables([1], [2]), ints(1, 1))
    assert torch.equal(out[0], out[1])
    assert torch.equal(out[0], pool.v[1, 0].repeat_interleave(2, dim=0))


def test_the_last_row_of_a_table_of_exact_width(guarded: Any) -> None:
    """vllm-project/vllm PR#56862, #53658; ROCm/flash-attention PR#97 (K26): entries past the table."""
    pool = Paged(6, 4)
    key, value = pool.put(0, 5, [5, 2])
    query = pool.query(5, 1)
    out = decode(guarded, pool, query, tables([5, 2]), ints(5))
    assert error_of(out, query, key, value) < FP32
    out = prefill(guarded, pool, query, tables([5, 2]), ints(0, 1), ints(5))
    assert error_of(out, query, key, value) < FP32


@pytest.mark.parametrize("entry", [-1, 99])
def test_ids_outside_the_pool_are_never_clamped(on: dict[str, Any], entry: int) -> None:
    """microsoft/onnxruntime PR#32391 (K30): ids clamped to block 0 change the answer.

    Asked to check, every path refuses; unasked, the access is out of range, not block 0's.
    """
    pool = Paged(3, 16)
    pool.put(0, 16, [1])
    pool.put(1, 1, [0, 1], first=16)
    query, table = pool.query(5, 1), tables([entry, 1])
    for backend in on.values():
        message = rf"block_tables\[0, 0\] is {entry}; it must be from 0 to 2"
        with pytest.raises(ValueError, match=message):
            decode(backend.ops, pool, query, table, ints(17), check_table=True)
        with pytest.raises(ValueError, match=message):
            prefill(backend.ops, pool, query, table, ints(0, 1), ints(17), check_table=True)
    with pytest.raises(MemoryFault), MemoryGuard():
        decode(on["triton-interpret"].ops, pool, query, table, ints(17))


@pytest.mark.parametrize("context_len", [1, 15, 17, 31, 33])
def test_blocks_as_large_as_a_tile(ops: Any, context_len: int) -> None:
    """zml/zml PR#563 (K32): padding was masked only where tile and block differed."""
    pool = Paged(4, 16)
    key, value = pool.put(0, context_len, [3, 1, 0])
    query = pool.query(5, 1)
    out = decode(ops, pool, query, tables([3, 1, 0]), ints(context_len))
    assert error_of(out, query, key, value) < FP32
