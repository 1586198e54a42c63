"""What a slot holds is read from its bits alone: every token, poison, and everything in between."""

import numpy as np
import pytest
import torch

from kvtwin.gpu.audit.contents import MIXED, POISON, TokenIndex
from kvtwin.gpu.audit.poison import poison
from kvtwin.gpu.twin.content import ContentShape, TokenContent

IDS = np.random.default_rng(7).integers(-(2**63), 2**63, 60)
NUM_SLOTS = 64
Pools = list[tuple[torch.Tensor, torch.Tensor]]


def filled(dtype: torch.dtype) -> tuple[ContentShape, Pools]:
    """Pools whose slots 0 to 59 hold the tokens of IDS; the last four are poison."""
    shape = ContentShape(3, 4, 2, 8, dtype)
    content, ids = TokenContent(shape, "cpu"), torch.from_numpy(IDS)
    keys, values = content.of(ids, "key"), content.of(ids, "value")
    pools = [
        (torch.empty(16, 4, 2, 8, dtype=dtype), torch.empty(16, 4, 2, 8, dtype=dtype))
        for _ in range(shape.num_layers)
    ]
    poison([pool for layer in pools for pool in layer], [(0, NUM_SLOTS)])
    for (k_pool, v_pool), key, value in zip(pools, keys, values, strict=True):
        k_pool.flatten(0, 1)[: len(IDS)] = key
        v_pool.flatten(0, 1)[: len(IDS)] = value
    return shape, pools


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_tokens_are_found_wherever_they_were_learned(dtype: torch.dtype) -> None:
    shape, pools = filled(dtype)
    index = TokenIndex(shape, "cpu")
    assert index.classify(pools).tolist() == [MIXED] * 60 + [POISON] * 4
    index.learn(IDS[40:])
    index.learn(IDS[[50, 3]])  # one of them once more
    assert index.classify(pools).tolist() == [
        *(IDS[slot] if slot == 3 or slot >= 40 else MIXED for slot in range(60)),
        *[POISON] * 4,
    ]
    index.learn(IDS)
    assert index.classify(pools)[:60].tolist() == IDS.tolist()


def test_one_bit_anywhere_makes_a_slot_mixed() -> None:
    shape, pools = filled(torch.float16)
    index = TokenIndex(shape, "cpu")
    index.learn(IDS)
    by_slot = [pool.view(torch.int16).flatten(0, 1).flatten(1) for layer in pools for pool in layer]
    for slot in range(NUM_SLOTS):
        # Each slot in another pool, channel and bit.
        by_slot[slot % 6][slot, slot % 16] ^= 1 << slot % 15
    assert (index.classify(pools) == MIXED).all()


def test_signs_do_not_make_up_for_each_other() -> None:
    """Of two words of 64 bits, the highest bit."""
    shape, pools = filled(torch.float16)
    index = TokenIndex(shape, "cpu")
    index.learn(IDS)
    by_slot = pools[1][0].view(torch.int16).flatten(0, 1).flatten(1)
    by_slot[8, [3, 7]] ^= -(1 << 15)
    assert np.flatnonzero(index.classify(pools) == MIXED).tolist() == [8]


def test_pieces_say_what_is_where() -> None:
    shape, pools = filled(torch.float16)
    index = TokenIndex(shape, "cpu")
    index.learn(IDS)
    by_slot = [[pool.flatten(0, 1) for pool in layer] for layer in pools]
    by_slot[0][1][5] = by_slot[0][1][9]  # V of another token
    by_slot[1][0][5] = by_slot[2][1][5]  # V of another layer in place of K
    by_slot[2][0][5] = by_slot[0][0][63]  # poison
    by_slot[2][1][5] = 0.25  # nothing that anybody knows
    assert index.classify(pools)[5] == MIXED
    assert index.pieces_of(pools, 5) == [
        (0, "key", IDS[5], 0),
        (0, "value", IDS[9], 1),
        (1, "key", IDS[5], 5),
        (1, "value", IDS[5], 3),
        (2, "key", POISON, -1),
        (2, "value", MIXED, -1),
    ]
