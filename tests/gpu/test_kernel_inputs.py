"""Arguments that do not fit are refused in one line, before anything is written."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from log_inputs import NAN, Paged, ints, normal, tables

from kvtwin.gpu.arguments import SplitPlan, SwapMove, allocate_host_pool
from kvtwin.gpu.errors import KernelInputError
from kvtwin.gpu.tools.overflow import int32_checks


def pool() -> Paged:
    paged = Paged(3, 4, dtype=torch.float16)
    paged.put(0, 6, [2, 0])
    return paged


def decode_arguments() -> dict[str, Any]:
    paged = pool()
    return {
        "query": paged.query(1, 1),
        "k_pool": paged.k,
        "v_pool": paged.v,
        "block_tables": tables([2, 0]),
        "context_lens": ints(6),
        "scale": 0.125,
        "out": torch.full((1, 4, 64), NAN, dtype=torch.float16),
    }


Change = Callable[[Any], Any]
DECODE_MISTAKES: list[tuple[str, Change, str]] = [
    ("query", lambda q: q[0], "query has 2 dimensions [4, 64]; it must have 3"),
    ("query", lambda q: q.float(), "query is torch.float32; k_pool is torch.float16"),
    ("query", lambda q: q[:, :3], "query has 3 heads; it must be a multiple of the 2 KV heads"),
    ("query", lambda q: q[..., :32], "query has head dim 32; k_pool has 64"),
    ("query", lambda q: q[..., ::2], "query has stride 2 in its last dimension; it must be 1"),
    ("query", lambda q: q.to("meta"), "query is on meta; it must be on cpu"),
    (
        "query",
        lambda q: q[:, :1].expand(-1, 4, -1),
        "query has stride 0 in dimension 1; rows of 64 elements would overlap",
    ),
    ("query", lambda q: q.repeat(2, 1, 1), "out has shape [1, 4, 64]; query has [2, 4, 64]"),
    ("k_pool", lambda k: k.int(), "k_pool is torch.int32; it must be float16, bfloat16 or float32"),
    (
        "k_pool",
        lambda k: k[:0],
        "k_pool has shape [0, 4, 2, 64]; every dimension must be at least 1",
    ),
    ("v_pool", lambda v: v[:2], "v_pool has shape [2, 4, 2, 64]; k_pool has [3, 4, 2, 64]"),
    ("v_pool", lambda v: v.bfloat16(), "v_pool is torch.bfloat16; k_pool is torch.float16"),
    ("block_tables", lambda t: t.long(), "block_tables is torch.int64; it must be torch.int32"),
    ("block_tables", lambda t: t[0], "block_tables has 1 dimensions [2]; it must have 2"),
    (
        "block_tables",
        lambda t: t.repeat(2, 1),
        "block_tables has shape [2, 2]; it must be [1, ...]",
    ),
    (
        "block_tables",
        lambda t: t.repeat(1, 2)[:, ::2],
        "block_tables has stride 2 in its last dimension; it must be 1",
    ),
    ("context_lens", lambda n: n.long(), "context_lens is torch.int64; it must be torch.int32"),
    ("context_lens", lambda n: n[None], "context_lens has 2 dimensions [1, 1]; it must have 1"),
    ("out", lambda out: out.float(), "out is torch.float32; query is torch.float16"),
    ("scale", lambda scale: 0.0, "scale is 0.0; it must be positive and finite"),
    ("scale", lambda scale: NAN, "scale is nan; it must be positive and finite"),
    ("window", lambda window: -1, "window is -1; it must be 0 (all) or more"),
    ("soft_cap", lambda cap: -1.0, "soft_cap is -1.0; it must be 0 (none) or positive and finite"),
    ("sinks", lambda sinks: torch.zeros(3), "sinks has shape [3]; it must be [4]"),
    ("sinks", lambda sinks: torch.zeros(4, device="meta"), "sinks is on meta; it must be on cpu"),
    ("sinks", lambda sinks: torch.zeros(4).int(), "sinks is torch.int32; it must be float16"),
]


@pytest.mark.parametrize(("name", "change", "message"), DECODE_MISTAKES)
def test_decode_refuses(ops: Any, name: str, change: Change, message: str) -> None:
    arguments = decode_arguments()
    out = arguments["out"]
    arguments[name] = change(arguments.get(name))
    with pytest.raises(KernelInputError, match=re.escape(message)) as raised:
        ops.paged_decode(**arguments)
    assert "\n" not in str(raised.value)
    assert out.isnan().all()


@pytest.mark.parametrize(
    ("workspace", "message"),
    [
        (torch.zeros(527), "workspace has shape [527]; it must be a contiguous [528] or more"),
        (torch.zeros(528).half(), "workspace is torch.float16 on cpu; it must be torch.float32"),
        (torch.zeros(2, 528), "workspace has shape [2, 528]"),
    ],
)
def test_a_workspace_must_hold_the_parts(
    on: dict[str, Any], workspace: torch.Tensor, message: str
) -> None:
    """4 heads x 2 splits x (64 elements, their largest score and denominator) are 528 numbers."""
    kernels = on["triton-interpret"].ops
    arguments = decode_arguments() | {"split": SplitPlan(2, 1)}
    assert kernels.paged_decode(**arguments, workspace=torch.zeros(528)).isfinite().all()
    with pytest.raises(KernelInputError, match=re.escape(message)):
        kernels.paged_decode(**arguments, workspace=workspace)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 1), "num_splits must be an integer from 1 to 64"),
        ((-1, 256), "num_splits must be an integer from 1 to 64"),
        ((65, 1), "num_splits must be an integer from 1 to 64"),
        ((2.0, 1), "num_splits must be an integer from 1 to 64"),
        ((1, 0), "min_split_tokens must be an integer from 1 to 1073741824"),
        ((1, 2**31), "min_split_tokens must be an integer from 1 to 1073741824"),
        ((3, 2**30), "3221225472 tokens at least; they must be 1073741824 or less"),
    ],
)
def test_a_split_plan_counts_from_one_in_32_bits(numbers: tuple[int, int], message: str) -> None:
    with pytest.raises(KernelInputError, match=message):
        SplitPlan(*numbers)


def test_the_largest_split_plan_runs(on: dict[str, Any]) -> None:
    """The last split would begin 64 x 2^24 tokens behind the first: no begin wraps."""
    kernels = on["triton-interpret"].ops
    whole = kernels.paged_decode(**decode_arguments() | {"out": None})
    split = SplitPlan(64, 2**24)
    with int32_checks():
        assert torch.equal(kernels.paged_decode(**decode_arguments(), split=split), whole)


@pytest.mark.parametrize(
    ("starts", "lens", "message"),
    [
        ((0,), (6,), "query_starts has shape [1]; it must be [2]"),
        ((1, 2), (6,), "query_starts goes from 1 to 2; it must go from 0 to 2 or less"),
        ((0, 3), (6,), "query_starts goes from 0 to 3; it must go from 0 to 2 or less"),
        ((0, 2), (1,), "query_starts gives sequence 0 2 tokens; it must be from 0 to its context"),
    ],
)
def test_prefill_refuses(
    ops: Any, starts: tuple[int, ...], lens: tuple[int, ...], message: str
) -> None:
    paged = pool()
    with pytest.raises(KernelInputError, match=re.escape(message)):
        ops.paged_prefill(
            paged.query(1, 2),
            paged.k,
            paged.v,
            tables([2, 0]),
            ints(*starts),
            ints(*lens),
            scale=0.125,
            check_table=True,
        )


@pytest.mark.parametrize(
    ("key_rows", "slots", "message"),
    [
        (2, (5, 12), "slot_mapping[1] is 12; it must be below 12, or negative"),
        (2, (5, 5), "slot_mapping[1] is 5, as slot_mapping[0] is"),
        (3, (-1, 0, 0), "slot_mapping[2] is 0, as slot_mapping[1] is"),
        (1, (5, 6), "key has shape [1, 2, 64]; it must be [2 or more, 2, 64]"),
    ],
)
def test_store_refuses(ops: Any, key_rows: int, slots: tuple[int, ...], message: str) -> None:
    paged = Paged(3, 4)
    rows = normal(1, key_rows, 2, 64)
    with pytest.raises(KernelInputError, match=re.escape(message)):
        ops.store_kv(rows, rows, paged.k, paged.v, torch.tensor(slots), check_slots=True)
    assert paged.k.isnan().all()


def test_store_takes_64_bit_slots_in_one_dimension(ops: Any) -> None:
    paged, rows = Paged(3, 4), normal(1, 2, 2, 64)
    with pytest.raises(KernelInputError, match=r"slot_mapping is torch\.int32; it must be torch"):
        ops.store_kv(rows, rows, paged.k, paged.v, ints(0, 1))
    with pytest.raises(
        KernelInputError, match=r"slot_mapping has 2 dimensions \[1, 2\]; it must h"
    ):
        ops.store_kv(rows, rows, paged.k, paged.v, torch.tensor([[0, 1]]))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([[0, 3]], "pairs[0] is (0, 3); ids must be below 3"),
        ([[0, 1], [2, 1]], "pairs[1] copies to block 1, which another pair of the call uses too"),
        ([[0, 1], [1, 2]], "pairs[0] copies to block 1, which another pair of the call uses too"),
        ([0, 1], "pairs has 1 dimensions [2]; it must have 2"),
        ([[0, 1, 2]], "pairs has shape [1, 3]; it must be [num_pairs, 2]"),
    ],
)
def test_copy_refuses(ops: Any, pairs: list[Any], message: str) -> None:
    paged = pool()
    before = paged.k.clone()
    with pytest.raises(KernelInputError, match=re.escape(message)):
        ops.copy_blocks(paged.k, paged.v, torch.tensor(pairs), check_pairs=True)
    assert torch.equal(paged.k.isnan(), before.isnan())


@pytest.mark.parametrize(
    ("move", "message"),
    [
        (SwapMove(True, 3, 0), "moves[1].device_block is 3; it must be an integer from 0 to 2"),
        (SwapMove(False, -1, 0), "moves[1].device_block is -1; it must be an integer from 0 to 2"),
        (SwapMove(False, 0, 2), "moves[1].host_block is 2; it must be an integer from 0 to 1"),
        (SwapMove(False, 1.0, 0), "moves[1].device_block is 1.0; it must be an integer from 0"),
        ((True, 0, 0), "moves[1] is tuple; it must be a SwapMove"),
    ],
)
def test_swap_refuses_all_moves_for_one(ops: Any, move: SwapMove, message: str) -> None:
    paged = pool()
    host = allocate_host_pool(paged.k, 2).fill_(NAN)
    with pytest.raises(KernelInputError, match=re.escape(message)):
        ops.swap_blocks(paged.k, paged.v, host, [SwapMove(True, 0, 0), move])
    assert host.isnan().all()


def test_swap_refuses_another_pools_host_memory(ops: Any) -> None:
    paged = pool()
    host = allocate_host_pool(paged.k, 2)
    with pytest.raises(
        KernelInputError, match=r"it must be torch\.float16 \[num_host_blocks, 2, 4"
    ):
        ops.swap_blocks(paged.k, paged.v, host.float(), [])
    with pytest.raises(KernelInputError, match="moves is generator; it must be a list or a tuple"):
        ops.swap_blocks(paged.k, paged.v, host, (SwapMove(True, 0, 0) for _ in range(1)))
    with pytest.raises(KernelInputError, match="host_pool must be contiguous host memory"):
        ops.swap_blocks(paged.k, paged.v, host.transpose(2, 3).contiguous().transpose(2, 3), [])


def test_merge_refuses(ops: Any) -> None:
    parts, lse = normal(1, 3, 2, 4, 16), normal(2, 3, 2, 4)
    out = torch.empty(3, 2, 16)
    for arguments, message in (
        ((parts.half(), lse), "partials and lse are torch.float16 and torch.float32"),
        ((parts, lse[:, :, :3].contiguous()), "lse has shape [3, 2, 3]"),
        ((parts[:, :, :0], lse[:, :, :0]), "of at least one part"),
    ):
        with pytest.raises(KernelInputError, match=re.escape(message)):
            ops.merge_partials(*arguments, out=out)
    with pytest.raises(KernelInputError, match=re.escape("out has shape [2, 2, 16]")):
        ops.merge_partials(parts, lse, out=out[:2])


def test_contiguous_decode_refuses_other_sequences(ops: Any) -> None:
    k = normal(1, 3, 5, 2, 64)
    with pytest.raises(KernelInputError, match="k has 3 sequences; query has 2"):
        ops.contiguous_decode(normal(2, 2, 4, 64), k, k, ints(1, 1), scale=1.0)


def test_nothing_to_do(ops: Any) -> None:
    """No sequence, no token, no pair, no move: nothing happens, and nothing breaks."""
    paged = Paged(2, 4)
    query, none = paged.query(1, 1)[:0], ints()
    table = torch.zeros(0, 3, dtype=torch.int32)
    options = {"scale": 1.0, "check_table": True}
    assert ops.paged_decode(query, paged.k, paged.v, table, none, **options).shape == (0, 4, 64)
    out = ops.paged_prefill(query, paged.k, paged.v, table, ints(0), none, **options)
    assert out.shape == (0, 4, 64)
    padding = paged.query(1, 3)
    assert (
        ops.paged_prefill(padding, paged.k, paged.v, table, ints(0), none, **options) == 0
    ).all()
    no_slots = torch.zeros(0, dtype=torch.int64)
    ops.store_kv(normal(1, 0, 2, 64), normal(1, 0, 2, 64), paged.k, paged.v, no_slots)
    ops.copy_blocks(paged.k, paged.v, torch.zeros(0, 2, dtype=torch.int64), check_pairs=True)
    ops.swap_blocks(paged.k, paged.v, allocate_host_pool(paged.k, 1), [])
    assert paged.k.isnan().all()
