"""Which free slots are of no use to a request, against a buddy allocator and against runs counted one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.gpu.audit.parts import RULES, too_short
from kvtwin.sim.buddy import Buddy


@given(st.integers(1, 300), st.data())
def test_pieces_of_a_buddy(num_slots: int, data: st.DataObject) -> None:
    """Whatever was taken and given back, the free slots alone say how a buddy has them."""
    buddy, is_free, taken = Buddy(num_slots), np.ones(num_slots, dtype=bool), []
    for order in data.draw(st.lists(st.integers(0, 7), max_size=30)):
        if order < 6 and order < num_slots.bit_length() and buddy.has_chunk(order):
            first = buddy.take(order)
            taken.append((first, order))
            is_free[first : first + (1 << order)] = False
        elif taken:
            first, order = taken.pop(data.draw(st.integers(0, len(taken) - 1)))
            buddy.give_back(first, order)
            is_free[first : first + (1 << order)] = True
    for order in range(10):
        need = 1 << order
        expected = sum(num for _, num in buddy.free_chunks() if num < need)
        assert too_short(is_free, need, aligned=True) == expected


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(0, 12))
def test_runs(free: list[bool], need: int) -> None:
    runs = "".join("#" if slot else " " for slot in free).split()
    expected = sum(len(run) for run in runs if len(run) < need)
    assert too_short(np.array(free), need, aligned=False) == expected


@pytest.mark.parametrize(
    ("policy", "prompt", "output", "longest", "asked", "need"),
    [
        # Figure 3's request A of the PagedAttention paper: 2048 slots for 7 + 2 tokens.
        ("orca-max", 7, 2, 2048, 2048, 2048),
        ("orca-pow2", 7, 2, 2048, 9, 16),
        ("orca-pow2", 100, 25, 2048, 132, 256),  # 25 tokens are taken for 32 (section 6.1)
        ("orca-pow2", 2000, 25, 2048, 2032, 2048),
        ("orca-pow2", 2000, 48, 2048, 2048, 2048),
        ("orca-oracle", 100, 25, 2048, 125, 128),
    ],
)
def test_reservations(
    policy: str, prompt: int, output: int, longest: int, asked: int, need: int
) -> None:
    rules = RULES[policy]
    assert rules.asked(prompt, output, longest, need) == asked
    assert rules.need is not None
    assert rules.need(prompt, output, prompt, longest) == need
