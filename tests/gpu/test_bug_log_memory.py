"""Bugs of other projects where KV is written, copied, swapped and merged, each with its small input.

Every test names the source of its entry, and the entry's number in the log they were collected in.
"""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from log_inputs import FP32, NAN, Paged, decode, error_of, ints, normal, prefill, tables

from kvtwin.gpu.arguments import SplitPlan, SwapMove, allocate_host_pool
from kvtwin.gpu.check.reference import attention


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """NaN equals NaN."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def test_both_parts_empty(ops: Any) -> None:
    """vllm-project/vllm PR#39148 (K13): -inf - -inf where no part has a key, and +inf as empty."""
    chance = torch.rand(8, 4, generator=torch.Generator().manual_seed(0))
    parts, lse = normal(1, 8, 4, 2, 16), normal(2, 8, 4, 2)
    empty = torch.where(chance < 0.1, math.inf, -math.inf)
    lse[chance < 0.35] = empty[chance < 0.35][:, None].expand(-1, 2)
    parts[chance < 0.35] = NAN
    out = ops.merge_partials(parts, lse, out=torch.full((8, 4, 16), NAN))
    assert (out[chance < 0.35] == 0).all()
    assert out.isfinite().all()
    assert (chance < 0.1).any()


def test_merging_with_nothing_is_the_identity(ops: Any) -> None:
    """flashinfer-ai/flashinfer #4051, PR#4054, PR#5262 (K14): (0, -inf) must change nothing."""
    part = normal(1, 3, 2, 1, 16)
    nothing = torch.zeros_like(part)
    lse = torch.full((3, 2, 3), -math.inf)
    none = ops.merge_partials(torch.cat([nothing] * 3, 2), lse, out=torch.full((3, 2, 16), NAN))
    assert (none == 0).all()
    lse[:, :, 1] = -1e30  # finite, and the only part: hopeless scores still sum to 1
    merged = ops.merge_partials(
        torch.cat([nothing, part, nothing], 2), lse, out=torch.full((3, 2, 16), NAN)
    )
    assert torch.equal(merged, part[:, :, 0])
    lse[:, :, 2] = 0.0
    merged = ops.merge_partials(
        torch.cat([nothing, part, 2 * part], 2), lse, out=torch.full((3, 2, 16), NAN)
    )
    assert torch.equal(merged, 2 * part[:, :, 0])


def test_logarithms_are_natural(ops: Any) -> None:
    """sgl-project/sglang PR#35045 (K59): base-2 logarithms merged as natural ones."""
    query, key, value = normal(1, 1, 1, 16), normal(2, 4160, 1, 16), normal(3, 4160, 1, 16)
    parts, logs = [], []
    for rows in (slice(0, 4096), slice(4096, 4160)):
        arrays = (tensor.double().numpy() for tensor in (query, key[rows], value[rows]))
        parts.append(torch.from_numpy(attention(*arrays, scale=0.25)))
        scores = 0.25 * key[rows, 0].double().numpy() @ query[0, 0].double().numpy()
        logs.append(math.log(np.exp(scores).sum()))
    assert logs[0] - logs[1] > 3  # the parts weigh very differently
    out = ops.merge_partials(
        torch.stack(parts, 2).float(), torch.tensor([[logs]]).float(), out=torch.empty(1, 1, 16)
    )
    assert error_of(out, query, key, value, scale=0.25) < 1e-6


def test_rows_without_a_slot(ops: Any) -> None:
    """vllm-project/vllm PR#13922 (K33): more key rows (graph padding) than slots."""
    pool = Paged(3, 4)
    rows = [normal(seed, 8, 2, 64) for seed in (1, 2)]
    slots = torch.tensor([9, 0, 3, 7, 4])
    ops.store_kv(*rows, pool.k, pool.v, slots)
    for written, given in ((pool.k, rows[0]), (pool.v, rows[1])):
        flat = written.flatten(0, 1)
        assert torch.equal(flat[slots], given[:5])
        others = torch.tensor([1, 2, 5, 6, 8, 10, 11])
        assert flat[others].isnan().all()


def test_padding_leaves_blocks_alone(ops: Any) -> None:
    """vllm-project/vllm PR#56734 (K28): a dummy batch wrote through rows of a finished request, whose
    blocks were in the prefix cache."""
    pool = Paged(4, 4)
    key, value = pool.put(0, 7, [2, 1])
    before = pool.k.clone(), pool.v.clone()
    stale, rows = tables([2, 1], [2, 1]), torch.full((2, 2, 64), NAN)
    ops.store_kv(rows, rows, pool.k, pool.v, torch.tensor([-1, -1]))
    dummy = decode(ops, pool, pool.query(5, 2), stale, ints(0, 0))
    assert (dummy == 0).all()
    assert same_bytes(pool.k, before[0])
    assert same_bytes(pool.v, before[1])
    query = pool.query(6, 1)
    hit = decode(ops, pool, query, stale[:1], ints(7))
    assert error_of(hit, query, key, value) < FP32


def test_a_shared_tail_is_copied_before_it_is_written(ops: Any) -> None:
    """Avarok-Cybersecurity/atlas #692, #1193, PR#1200 (K74): two writers of one tail block."""
    pool = Paged(6, 16)
    key, value = pool.put(0, 20, [4, 2])
    ops.copy_blocks(pool.k, pool.v, torch.tensor([[2, 5]]), check_pairs=True)
    assert same_bytes(pool.k[5], pool.k[2])
    assert same_bytes(pool.v[5], pool.v[2])
    table = tables([4, 2], [4, 5])
    grown = [(key, value), (key, value)]
    for step in range(4):
        new_k, new_v = normal(10 + step, 2, 2, 64), normal(20 + step, 2, 2, 64)
        slots = torch.tensor([2 * 16 + 4 + step, 5 * 16 + 4 + step])
        ops.store_kv(new_k, new_v, pool.k, pool.v, slots, check_slots=True)
        grown = [
            (torch.cat([k, new_k[i : i + 1]]), torch.cat([v, new_v[i : i + 1]]))
            for i, (k, v) in enumerate(grown)
        ]
        query = pool.query(30 + step, 2)
        out = decode(ops, pool, query, table, ints(21 + step, 21 + step))
        for row in range(2):
            own = slice(row, row + 1)
            assert error_of(out[own], query[own], *grown[row]) < FP32
            tail = pool.k[(2, 5)[row], : 5 + step]
            assert torch.equal(tail, grown[row][0][16:])


def test_swaps_happen_in_order(ops: Any) -> None:
    """NVIDIA/TensorRT-LLM PR#9056 (K75): two blocks to one host block in a step, and a read between."""
    pool = Paged(4, 4)
    for block in range(4):
        pool.put(block, 4, [block])
    first, third = pool.k[1].clone(), pool.k[3].clone()
    host = allocate_host_pool(pool.k, 2)
    host.fill_(NAN)
    moves = [SwapMove(True, 1, 0), SwapMove(False, 2, 0), SwapMove(True, 3, 0)]
    ops.swap_blocks(pool.k, pool.v, host, moves)
    assert torch.equal(pool.k[2], first)
    assert torch.equal(host[0, 0], third)
    assert torch.equal(host[0, 1], pool.v[3])
    assert host[1].isnan().all()


def test_last_one_wins_on_the_host_and_on_the_device(ops: Any) -> None:
    """NVIDIA/TensorRT-LLM PR#9056 (K75), without a read between."""
    pool = Paged(6, 4)
    for block in range(6):
        pool.put(block, 4, [block])
    blocks = pool.k.clone()
    host = allocate_host_pool(pool.k, 4)
    outs = [SwapMove(True, 0, 1), SwapMove(True, 1, 1), SwapMove(True, 2, 2)]
    ops.swap_blocks(pool.k, pool.v, host, outs)
    ops.swap_blocks(pool.k, pool.v, host, [SwapMove(False, 5, 1), SwapMove(False, 5, 2)])
    assert torch.equal(host[1, 0], blocks[1])
    assert torch.equal(pool.k[5], blocks[2])


@pytest.mark.parametrize("num_full", range(4))
def test_a_table_one_entry_short(ops: Any, num_full: int) -> None:
    """AI-Hypercomputer/maxtext PR#1777 (K23): pages of a sequence by floor division."""
    context_len = 16 * num_full + 1
    pool = Paged(5, 16)
    key, value = pool.put(0, context_len, [3, 0, 4, 1])
    query = pool.query(5, 1)
    exact = tables([3, 0, 4, 1][: num_full + 1])
    out = decode(ops, pool, query, exact, ints(context_len), check_table=True)
    assert error_of(out, query, key, value) < FP32
    message = re.escape(f"context_lens[0] is {context_len}; it must be from 0 to {16 * num_full}:")
    short = exact[:, :num_full].contiguous()
    with pytest.raises(ValueError, match=message):
        decode(ops, pool, query, short, ints(context_len), check_table=True)


@pytest.mark.parametrize("context_len", [-1, 17, 2**31 - 1])
def test_lengths_that_the_table_cannot_hold(ops: Any, context_len: int) -> None:
    """flashinfer-ai/flashinfer #320 (K25): a last page longer than a page, accepted silently."""
    pool = Paged(2, 16)
    pool.put(0, 16, [1])
    query, table = pool.query(5, 1), tables([1])
    message = re.escape(f"context_lens[0] is {context_len}; it must be from 0 to 16")
    with pytest.raises(ValueError, match=message):
        decode(ops, pool, query, table, ints(context_len), check_table=True)
    if context_len > 0:
        with pytest.raises(ValueError, match=message):
            prefill(ops, pool, query, table, ints(0, 1), ints(context_len), check_table=True)
    with pytest.raises(ValueError, match=message):
        ops.contiguous_decode(
            query, pool.k[:1], pool.v[:1], ints(context_len), scale=1.0, check_lens_fit=True
        )


def test_a_pool_without_its_block_dimension(ops: Any) -> None:
    """flashinfer-ai/flashinfer #1204 (K40): a flat cache was taken for pages of one token."""
    flat = normal(0, 8, 2, 64)
    with pytest.raises(ValueError, match=r"k_pool has 3 dimensions \[8, 2, 64\]; it must have 4"):
        ops.paged_decode(
            normal(1, 1, 4, 64), flat, flat, tables([0]), ints(1), scale=1.0, split=SplitPlan(1)
        )
