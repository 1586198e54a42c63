"""A check of a table refuses what would be read and is no block, and nothing else."""

import re
from typing import Any

import pytest
import torch
from log_inputs import FP32, Paged, decode, error_of, ints, prefill, tables

from kvtwin.gpu.errors import KernelInputError


def test_prefill_checks_what_its_first_query_sees(ops: Any) -> None:
    """Entries in front of every window may be anything; the first query reaches furthest back."""
    paged = Paged(4, 4)
    paged.put(0, 16, [0, 1, 2, 3])
    arguments = (paged.k, paged.v, tables([99, 99, 2, 3]), ints(0, 5), ints(16))
    options = {"scale": 0.125, "check_table": True}
    # Query tokens 11 to 15 with a window of 4 see tokens 8 and later: blocks 2 and 3.
    assert ops.paged_prefill(paged.query(1, 5), *arguments, window=4, **options).isfinite().all()
    with pytest.raises(KernelInputError, match=re.escape("block_tables[0, 1] is 99")):
        ops.paged_prefill(paged.query(1, 5), *arguments, window=5, **options)


def test_each_sequence_is_checked_from_its_own_first_query_on(ops: Any) -> None:
    """A decode whose old blocks are freed, beside a long chunk, and rows that have no queries.

    What their table rows and lengths hold is read by no kernel.
    """
    pool = Paged(8, 4)
    decoded = pool.put(0, 22, [7, 7, 7, 7, 5, 6])
    chunked = pool.put(1, 12, [0, 1, 2])
    table = tables([99, -1, 99, -1, 5, 6], [0, 1, 2], [77, -5], [])
    query, starts = pool.query(5, 11), ints(0, 1, 11, 11, 11)
    lens, options = ints(22, 12, -3, 10**6), {"window": 6, "check_table": True}
    out = prefill(ops, pool, query, table, starts, lens, **options)
    assert error_of(out[:1], query[:1], *decoded, window=6) < FP32
    assert error_of(out[1:], query[1:], *chunked, window=6) < FP32
    with pytest.raises(KernelInputError, match=re.escape("block_tables[0, 3] is -1")):
        prefill(ops, pool, query, table, starts, lens, **options | {"window": 7})
    # With queries, the last row is checked like any other.
    with pytest.raises(KernelInputError, match=re.escape("sequence 2 1 tokens; it must be")):
        prefill(ops, pool, query, table, ints(0, 1, 10, 11, 11), lens, **options)


@pytest.mark.parametrize("window", [0, 6])
def test_ids_are_below_the_number_of_blocks(ops: Any, window: int) -> None:
    pool = Paged(3, 4)
    pool.put(0, 7, [1, 2])
    query, options = pool.query(5, 1), {"window": window, "check_table": True}
    for entry in (3, -1, 2**31 - 1, -(2**31)):
        message = re.escape(f"block_tables[0, 1] is {entry}; it must be from 0 to 2")
        with pytest.raises(KernelInputError, match=message):
            decode(ops, pool, query, tables([1, entry]), ints(7), **options)
        with pytest.raises(KernelInputError, match=message):
            prefill(ops, pool, query, tables([1, entry]), ints(0, 1), ints(7), **options)
    assert decode(ops, pool, query, tables([1, 2]), ints(7), **options).isfinite().all()


def test_lengths_below_0_are_like_0(ops: Any) -> None:
    """Unasked to check, every path gives 0 for them: all of a batch's, and one among others."""
    pool = Paged(3, 4)
    key, value = pool.put(0, 7, [1, 2])
    query, table = pool.query(5, 2), tables([1, 2], [1, 2])
    for lens in (ints(-1, -(2**31)), ints(0, -5)):
        assert (decode(ops, pool, query, table, lens) == 0).all()
        assert (ops.contiguous_decode(query, pool.k[:2], pool.v[:2], lens, scale=1.0) == 0).all()
        assert (prefill(ops, pool, query, table, ints(0, 1, 2), lens) == 0).all()
    out = decode(ops, pool, query, table, ints(-7, 7))
    assert (out[0] == 0).all()
    assert error_of(out[1:], query[1:], key, value) < FP32


@pytest.mark.parametrize("window", [0, 2])
def test_queries_in_front_of_their_sequence_see_nothing(ops: Any, window: int) -> None:
    """More queries than context, unchecked: the last ones are the sequence's, the others give 0."""
    pool = Paged(3, 4)
    key, value = pool.put(0, 3, [1])
    query = pool.query(5, 5)
    arguments = (tables([1]), ints(0, 5), ints(3))
    out = prefill(ops, pool, query, *arguments, window=window)
    assert (out[:2] == 0).all()
    assert error_of(out[2:], query[2:], key, value, window=window) < FP32
    with pytest.raises(KernelInputError, match="sequence 0 5 tokens; it must be from 0 to its con"):
        prefill(ops, pool, query, *arguments, window=window, check_table=True)


def test_a_meta_tensor_is_not_read(ops: Any) -> None:
    pool = Paged(3, 4)
    pool.k, pool.v = (tensor.to("meta") for tensor in (pool.k, pool.v))
    query = pool.query(5, 1).to("meta")
    ids = [tensor.to("meta") for tensor in (tables([1, 2]), ints(0, 1), ints(7))]
    for check in (True, False):
        with pytest.raises(KernelInputError, match=" is on meta"):
            decode(ops, pool, query, ids[0], ids[2], check_table=check)
        with pytest.raises(KernelInputError, match=" is on meta"):
            prefill(ops, pool, query, *ids, check_table=check)
        with pytest.raises(KernelInputError, match=" is on meta"):
            ops.contiguous_decode(
                query, pool.k[:1], pool.v[:1], ids[2], scale=1.0, check_lens_fit=check
            )
        rows = torch.zeros(2, 2, 64, device="meta")
        slots = torch.zeros(2, dtype=torch.int64, device="meta")
        with pytest.raises(KernelInputError, match=" is on meta"):
            ops.store_kv(rows, rows, pool.k, pool.v, slots, check_slots=check)
        pairs = torch.zeros(1, 2, dtype=torch.int64, device="meta")
        with pytest.raises(KernelInputError, match=" is on meta"):
            ops.copy_blocks(pool.k, pool.v, pairs, check_pairs=check)
    with pytest.raises(KernelInputError, match=" is on meta"):
        ops.swap_blocks(pool.k, pool.v, torch.zeros(1, 2, 4, 2, 64, device="meta"), [])
    parts = torch.zeros(1, 1, 2, 4, device="meta")
    with pytest.raises(KernelInputError, match=" is on meta"):
        ops.merge_partials(parts, parts[..., 0].contiguous(), out=parts[:, :, 0])
