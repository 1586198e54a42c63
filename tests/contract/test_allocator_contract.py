"""What every policy promises: the contract in `kvtwin.sim.Allocator`, one test a promise."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Any

import pytest
from allocators import (
    ALLOCATORS,
    build,
    cached_slots,
    can_run,
    everything,
    free_slots,
    num_unheld_slots,
    sequence,
    slots_by_position,
    slots_of,
)
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import prompt_pieces

from kvtwin.sim import Allocator, Sequence

POLICIES = [*ALLOCATORS, "outside_policy:Halves"]


@dataclass
class Pool:
    """An allocator, who holds memory of it in order of admission, and who is still in prefill."""

    allocator: Allocator
    max_model_len: int
    holders: list[Sequence] = field(default_factory=list)
    prefilled: dict[int, int] = field(
        default_factory=dict
    )  # row -> tokens that have been given room

    @property
    def growers(self) -> list[Sequence]:
        """Whom the engine would let grow: decoding, and not yet with room up to their end."""
        return [
            seq
            for seq in self.holders
            if self.prefilled[seq.row] == seq.known and seq.room < seq.end
        ]


@st.composite
def pools(draw: st.DrawFn, policy: str) -> Pool:
    """A pool that some requests have been admitted to, grown in, and left."""
    block_size = draw(st.integers(1, 4))
    num_slots = block_size * draw(st.integers(4, 24))
    max_model_len = draw(st.integers(2, max(2, num_slots // 2)))
    pool = Pool(
        build(
            policy,
            num_slots,
            max_model_len=max_model_len,
            max_num_seqs=draw(st.integers(1, 4)),
            block_size=block_size,
            admission=draw(st.sampled_from(["step", "full"])),
            watermark=draw(st.sampled_from([0.0, 0.3])),
            growth_tokens=draw(st.integers(1, 5)),
            fit=draw(st.sampled_from(["first", "best"])),
            compaction=draw(st.booleans()),
        ),
        max_model_len,
    )
    for row in range(draw(st.integers(0, 12))):
        leaves, share = draw(st.integers(0, 2)), draw(st.sampled_from([1, 2]))
        seq = drawn_sequence(draw, pool, row)
        if seq is not None:
            num_tokens = seq.known
            if pool.allocator.chunked_prefill:
                num_tokens = max(pool.allocator.num_hit_tokens(seq) + 1, num_tokens // share)
            if pool.allocator.admit(seq, num_tokens, bool(pool.holders)):
                pool.holders.append(seq)
                pool.prefilled[row] = num_tokens
        if leaves == 0 and pool.holders:
            pool.allocator.free(pool.holders.pop(draw(st.integers(0, len(pool.holders) - 1))))
        elif leaves == 1 and (growers := pool.growers):
            grow_all(pool.allocator, growers)
            pool.allocator.end_step()
    return pool


def drawn_sequence(draw: Callable[..., Any], pool: Pool, row: int) -> Sequence | None:
    """A request that would not be rejected; None if the one drawn would."""
    num_prompt = draw(st.integers(1, pool.max_model_len - 1))
    num_output = draw(st.integers(1, pool.max_model_len - num_prompt))
    pieces = draw(prompt_pieces(num_prompt)) if pool.allocator.reuses_prefixes else ()
    seq = sequence(row, num_prompt, num_output, pieces)
    return seq if can_run(pool.allocator, seq) else None


def grow_all(allocator: Allocator, growers: list[Sequence]) -> int:
    """`grow`, and room kept up to date, which the allocator may leave to the engine."""
    rooms = [seq.room for seq in growers]
    num_served = allocator.grow(growers)
    for seq, room in zip(growers[:num_served], rooms, strict=False):
        seq.room = room + (allocator.growth_tokens or 0)
    return num_served


def for_pools(test: Callable[..., None]) -> Callable[[str], None]:
    """Run a test on random pools of every policy."""

    @pytest.mark.parametrize("policy", POLICIES)
    def parametrised(policy: str) -> None:
        settings(max_examples=examples(40))(given(pools(policy), st.data())(test))()

    parametrised.__doc__ = test.__doc__
    return parametrised


def held(pool: Pool) -> Iterator[int]:
    for seq in pool.holders:
        yield from slots_of(pool.allocator, seq)


@for_pools
def test_slots_are_free_or_cached_or_held_by_one(pool: Pool, data: st.DataObject) -> None:
    allocator = pool.allocator
    taken, free, cached = list(held(pool)), free_slots(allocator), cached_slots(allocator)
    assert len(taken) == len(set(taken)), "two hold one slot"
    for one, other in combinations((free, cached, set(taken)), 2):
        assert not one & other, "two of free, cached and held"
    assert free | cached | set(taken) == set(range(allocator.num_slots)), "in no state"
    assert not cached or allocator.reuses_prefixes
    allocator.check(pool.holders)


@for_pools
def test_free_runs_are_maximal_and_counted(pool: Pool, data: st.DataObject) -> None:
    runs = pool.allocator.free_runs()
    for (first, num), (next_first, _) in pairwise(runs):
        assert first + num < next_first, f"{runs} are not maximal, or not by address"
    assert sum(num for _, num in runs) == pool.allocator.num_free_slots()
    assert len(cached_slots(pool.allocator)) == pool.allocator.num_cached_slots()
    longest = max((num for _, num in runs), default=0)
    assert pool.allocator.largest_free_run() == longest


@for_pools
def test_fits_is_pure_and_tells_what_admit_does(pool: Pool, data: st.DataObject) -> None:
    allocator = pool.allocator
    seq = drawn_sequence(data.draw, pool, 99)
    if seq is None:
        return
    before = everything(allocator, [*pool.holders, seq])
    hit = allocator.num_hit_tokens(seq)
    assert everything(allocator, [*pool.holders, seq]) == before, "a look has changed something"
    assert 0 <= hit < seq.known
    first_tokens = st.integers(hit + 1, seq.known)
    num_tokens = data.draw(first_tokens) if allocator.chunked_prefill else seq.known
    fits = allocator.fits(seq, num_tokens, bool(pool.holders))
    assert everything(allocator, [*pool.holders, seq]) == before, "fits has changed something"
    assert allocator.admit(seq, num_tokens, bool(pool.holders)) == fits
    if not fits:
        assert everything(allocator, [*pool.holders, seq]) == before, (
            "a refusal has changed something"
        )
        assert 0 <= allocator.unusable_slots(seq, num_tokens) <= allocator.num_free_slots()
        return
    assert seq.room >= num_tokens
    assert len(slots_of(allocator, seq)) == seq.granted_slots >= seq.asked_slots
    if allocator.keeps_kv:
        assert len(slots_by_position(allocator, seq)) >= num_tokens
    allocator.check([*pool.holders, seq])


@for_pools
def test_extend_makes_room_or_changes_nothing(pool: Pool, data: st.DataObject) -> None:
    allocator = pool.allocator
    for seq in pool.holders:
        wanted = data.draw(st.integers(pool.prefilled[seq.row], seq.known))
        before = everything(allocator, pool.holders)
        slots = slots_by_position(allocator, seq)
        if allocator.extend(seq, wanted):
            assert seq.room >= wanted
            assert slots_by_position(allocator, seq)[: len(slots)] == slots, (
                "prefilled tokens moved"
            )
            assert len(slots_of(allocator, seq)) == seq.granted_slots
        else:
            assert everything(allocator, pool.holders) == before
        allocator.check(pool.holders)


@for_pools
def test_grow_serves_in_order_and_stops(pool: Pool, data: st.DataObject) -> None:
    allocator, growers = pool.allocator, pool.growers
    if not growers:
        return
    if allocator.growth_tokens is None:
        assert all(seq.room >= seq.end for seq in growers), "it ends without room and cannot grow"
    sizes = {seq.row: len(slots_by_position(allocator, seq)) for seq in pool.holders}
    num_free = allocator.num_free_slots()
    num_served = grow_all(allocator, growers)
    assert 0 <= num_served <= len(growers)
    for number, seq in enumerate(growers):
        grown = len(slots_by_position(allocator, seq)) - sizes[seq.row]
        assert grown == (allocator.growth_slots if number < num_served else 0)
    taken = num_free - allocator.num_free_slots()
    assert taken == num_served * allocator.growth_slots + allocator.pending_slots
    if allocator.interchangeable:
        assert num_served == min(len(growers), num_free // allocator.growth_slots)
    allocator.check(pool.holders)
    if num_served < len(growers):
        before = everything(allocator, pool.holders)
        assert allocator.grow(growers[num_served:]) == 0
        assert everything(allocator, pool.holders) == before, "a refusal has changed something"
    allocator.end_step()
    assert (allocator.pending_slots, allocator.moved_slots) == (0, 0)
    assert num_free - allocator.num_free_slots() == num_served * allocator.growth_slots
    allocator.check(pool.holders)


@for_pools
def test_free_returns_everything(pool: Pool, data: st.DataObject) -> None:
    allocator = pool.allocator
    for seq in data.draw(st.permutations(pool.holders)):
        num_held, num_unheld = len(slots_of(allocator, seq)), num_unheld_slots(allocator)
        allocator.free(seq)
        assert not slots_of(allocator, seq)
        assert num_unheld_slots(allocator) == num_unheld + num_held
        assert seq.granted_slots == num_held, "what it held must be left in the fields"
        pool.holders.remove(seq)
        allocator.check(pool.holders)
    assert free_slots(allocator) | cached_slots(allocator) == set(range(allocator.num_slots))
    assert allocator.reuses_prefixes or allocator.free_runs() == [(0, allocator.num_slots)]


@for_pools
def test_an_accepted_request_can_always_run_alone(pool: Pool, data: st.DataObject) -> None:
    """No request may wait for ever: alone in the pool it gets room up to its end, in any chunks."""
    allocator = pool.allocator
    while pool.holders:
        allocator.free(pool.holders.pop())
    seq = drawn_sequence(data.draw, pool, 99)
    if seq is None:
        return
    seq.known += data.draw(st.integers(0, seq.num_output_tokens - 1))  # as after a preemption
    chunk = data.draw(st.integers(1, seq.known)) if allocator.chunked_prefill else seq.known
    first_tokens = min(allocator.num_hit_tokens(seq) + chunk, seq.known)
    assert allocator.admit(seq, first_tokens, False)
    for num_tokens in range(first_tokens, seq.known, chunk):
        assert allocator.extend(seq, num_tokens)
    assert allocator.extend(seq, seq.known)
    while seq.room < seq.end:
        assert grow_all(allocator, [seq]) == 1
        allocator.end_step()
        allocator.check([seq])
