"""Bytes of small cases by hand arithmetic: the guard counts them, and the traffic model has them."""

from typing import Any

import pytest
import torch

from kvtwin.gpu.arguments import SplitPlan, Tuning
from kvtwin.gpu.tools.guard import MemoryGuard
from kvtwin.sim.traffic import (
    AttentionShape,
    Traffic,
    decode_traffic,
    prefill_traffic,
    store_traffic,
)

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE = 4, 2, 64, 8, 16
SHAPE = AttentionShape(NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, 2, BLOCK_SIZE)
CONTEXT_LENS = [20, 5]
# K of a token: 2 heads x 64 x 2 bytes. Query of a token: 4 heads x 64 x 2 bytes.
KV_ROW, QUERY_ROW = 256, 512


@pytest.fixture
def ops(on: dict[str, Any]) -> Any:
    return on["triton-interpret"].ops


@pytest.fixture
def pools() -> dict[str, torch.Tensor]:
    shape = (5, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    return {name: torch.ones(shape, dtype=torch.float16) for name in ("k_pool", "v_pool")}


def sequences() -> dict[str, torch.Tensor]:
    return {
        "block_tables": torch.tensor([[3, 0, 4], [1, -1, -1]], dtype=torch.int32),
        "context_lens": torch.tensor(CONTEXT_LENS, dtype=torch.int32),
    }


def query(num_tokens: int) -> torch.Tensor:
    return torch.ones(num_tokens, NUM_HEADS, HEAD_DIM, dtype=torch.float16)


def counted(guard: MemoryGuard) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes read and written by argument, whatever kernel it is of."""
    sums: list[dict[str, int]] = []
    for by_name in (guard.distinct_read_bytes, guard.written_bytes):
        by_argument: dict[str, int] = {}
        for name, num_bytes in by_name.items():
            argument = name.partition(".")[2].removesuffix("_ptr")
            by_argument[argument] = by_argument.get(argument, 0) + num_bytes
        sums.append(by_argument)
    return sums[0], sums[1]


def modelled(traffic: Traffic) -> tuple[dict[str, int], dict[str, int]]:
    return dict(traffic.read_bytes), dict(traffic.written_bytes)


def test_decode(ops: Any, pools: dict[str, torch.Tensor]) -> None:
    by_hand = (
        {
            "k": 25 * KV_ROW,
            "v": 25 * KV_ROW,
            # Tiles of 16: tokens 0 to 15 are in 2 blocks, 16 to 19 in 1; 0 to 4 in 1. For 2 heads.
            "tables": (2 + 1 + 1) * 2 * 4,
            "lens": 2 * 2 * 4,
            "query": 2 * QUERY_ROW,
        },
        {"out": 2 * QUERY_ROW},
    )
    with MemoryGuard() as guard:
        ops.paged_decode(query(2), **pools, **sequences(), scale=0.1, tuning=Tuning(TILE, 4, 2))
    assert counted(guard) == by_hand
    assert modelled(decode_traffic(CONTEXT_LENS, SHAPE, tile_tokens=TILE)) == by_hand


def test_decode_in_two_splits(ops: Any, pools: dict[str, torch.Tensor]) -> None:
    # 20 tokens in two are 10 each, a whole tile of 16 and 4; 5 tokens are one part.
    num_parts, num_results = 3, 2 * NUM_HEADS
    by_hand = (
        {
            "k": 25 * KV_ROW,
            "v": 25 * KV_ROW,
            "tables": (2 + 1 + 1) * 2 * 4,
            "lens": 2 * 2 * 2 * 4,
            "query": num_parts * QUERY_ROW,
            "maxima": num_results * 2 * 4,
            "sums": num_results * 2 * 4,
            "partials": num_parts * NUM_HEADS * HEAD_DIM * 4,
        },
        {
            "maxima": num_results * 2 * 4,
            "sums": num_results * 2 * 4,
            "partials": num_parts * NUM_HEADS * HEAD_DIM * 4,
            "out": 2 * QUERY_ROW,
        },
    )
    split = SplitPlan(2, min_split_tokens=1)
    with MemoryGuard() as guard:
        ops.paged_decode(
            query(2), **pools, **sequences(), scale=0.1, split=split, tuning=Tuning(TILE, 4, 2)
        )
    assert counted(guard) == by_hand
    model = decode_traffic(CONTEXT_LENS, SHAPE, tile_tokens=TILE, num_splits=2)
    assert modelled(model) == by_hand


def test_decode_in_a_window_that_begins_inside_a_block(
    ops: Any, pools: dict[str, torch.Tensor]
) -> None:
    # The last 6 of 20 tokens, 14 to 19: blocks 1 and 2. All 5 of 5.
    by_hand = (
        {
            "k": 11 * KV_ROW,
            "v": 11 * KV_ROW,
            "tables": (2 + 1) * 2 * 4,
            "lens": 2 * 2 * 4,
            "query": 2 * QUERY_ROW,
            "sinks": NUM_HEADS * 2 * 4,
        },
        {"out": 2 * QUERY_ROW},
    )
    options = {"window": 6, "sinks": torch.zeros(NUM_HEADS)}
    with MemoryGuard() as guard:
        ops.paged_decode(
            query(2), **pools, **sequences(), scale=0.1, tuning=Tuning(TILE, 4, 2), **options
        )
    assert counted(guard) == by_hand
    shape = AttentionShape(NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, 2, BLOCK_SIZE, 6, has_sinks=True)
    assert modelled(decode_traffic(CONTEXT_LENS, shape, tile_tokens=TILE)) == by_hand


def test_prefill(ops: Any, pools: dict[str, torch.Tensor]) -> None:
    """Ten new tokens behind ten, in tiles of 8, and two of five."""
    # The tiles see 18, 20 and 5 keys: 3 blocks each of the first two, in tiles of 16.
    num_keys = 18 + 20 + 5
    by_hand = (
        {
            "k": num_keys * KV_ROW,
            "v": num_keys * KV_ROW,
            "tables": (3 + 3 + 1) * 2 * 4,
            "query": 12 * QUERY_ROW,
        },
        {"out": 12 * QUERY_ROW},
    )
    starts = torch.tensor([0, 10, 12], dtype=torch.int32)
    # 16 rows of a tile are 8 tokens of 2 heads.
    tuning = Tuning(TILE, 4, 2, query_rows=16)
    with MemoryGuard() as guard:
        ops.paged_prefill(
            query(12), **pools, **sequences(), query_starts=starts, scale=0.1, tuning=tuning
        )
    read, written = counted(guard)
    del read["starts"], read["lens"]  # which the model leaves out
    assert (read, written) == by_hand
    model = prefill_traffic([10, 2], CONTEXT_LENS, SHAPE, tile_tokens=TILE, query_tile_tokens=8)
    assert modelled(model) == by_hand


def test_store(ops: Any, pools: dict[str, torch.Tensor]) -> None:
    by_hand = (
        {"key": 3 * KV_ROW, "value": 3 * KV_ROW, "slots": 4 * 8},
        {"k": 3 * KV_ROW, "v": 3 * KV_ROW},
    )
    rows = torch.ones(4, NUM_KV_HEADS, HEAD_DIM, dtype=torch.float16)
    with MemoryGuard() as guard:
        ops.store_kv(rows, rows.clone(), **pools, slot_mapping=torch.tensor([7, -1, 0, 39]))
    assert counted(guard) == by_hand
    assert modelled(store_traffic(3, 1, SHAPE)) == by_hand


def test_copy(ops: Any, pools: dict[str, torch.Tensor]) -> None:
    # One block of 8 slots, and a pair of padding of which only the ids are read.
    block = 8 * KV_ROW
    with MemoryGuard() as guard:
        ops.copy_blocks(**pools, pairs=torch.tensor([[3, 1], [-1, 2]]))
    read, written = counted(guard)
    assert read == {"k_to": block, "v_to": block, "to_ids": 16, "from_ids": 16}
    assert written == {"k_to": block, "v_to": block}
