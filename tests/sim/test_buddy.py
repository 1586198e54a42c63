"""The buddy allocator against a model that looks at all chunks every time."""

from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.sim.buddy import Buddy

Chunk = tuple[int, int]  # (first slot, order)


def binary_expansion(num_slots: int) -> set[Chunk]:
    chunks, first = set(), 0
    for order in range(num_slots.bit_length() - 1, -1, -1):
        if num_slots & 1 << order:
            chunks.add((first, order))
            first += 1 << order
    return chunks


def merged(free: set[Chunk]) -> set[Chunk]:
    """Join any two buddies: halves of one aligned chunk of twice their length."""
    free = set(free)
    while pair := next(
        (
            (first, order)
            for first, order in free
            if first % (2 << order) == 0 and (first + (1 << order), order) in free
        ),
        None,
    ):
        first, order = pair
        free -= {pair, (first + (1 << order), order)}
        free.add((first, order + 1))
    return free


def lengths(chunks: set[Chunk]) -> list[tuple[int, int]]:
    return sorted((first, 1 << order) for first, order in chunks)


def test_a_pool_of_any_size_starts_as_powers_of_two() -> None:
    assert [num for _, num in Buddy(15_728).free_chunks()] == [
        8192,
        4096,
        2048,
        1024,
        256,
        64,
        32,
        16,
    ]
    assert Buddy(13).free_chunks() == [(0, 8), (8, 4), (12, 1)]


def test_orders() -> None:
    """The smallest power of two that is not below."""
    assert [Buddy.order_of(num) for num in (1, 2, 3, 4, 5, 8, 9, 1024, 1025)] == [
        0, 1, 2, 2, 3, 3, 4, 10, 11,
    ]  # fmt: skip


def test_splitting_leaves_the_upper_halves_and_merging_undoes_it() -> None:
    buddy = Buddy(16)
    assert buddy.take(1) == 0
    assert buddy.free_chunks() == [(2, 2), (4, 4), (8, 8)]
    assert buddy.take(0) == 2, "the smallest chunk that serves, not the lowest"
    assert buddy.take(2) == 4
    buddy.give_back(0, 1)
    assert buddy.free_chunks() == [(0, 2), (3, 1), (8, 8)], "[0, 2) waits for [2, 4)"
    buddy.give_back(2, 0)
    assert buddy.free_chunks() == [(0, 4), (8, 8)]
    buddy.give_back(4, 2)
    assert buddy.free_chunks() == [(0, 16)]


def test_chunks_side_by_side_that_are_no_buddies_stay_apart() -> None:
    """In a pool of 12, [4, 8) and [8, 12) adjoin, but the buddy of [8, 12) would be [12, 16)."""
    buddy = Buddy(12)
    assert [buddy.take(2) for _ in range(3)] == [8, 0, 4]
    buddy.give_back(4, 2)
    buddy.give_back(8, 2)
    assert buddy.free_chunks() == [(4, 4), (8, 4)]
    assert not buddy.has_chunk(3)
    buddy.give_back(0, 2)
    assert buddy.free_chunks() == [(0, 8), (8, 4)]


@settings(max_examples=examples(150))
@given(num_slots=st.integers(1, 200), data=st.data())
def test_any_takes_and_returns(num_slots: int, data: st.DataObject) -> None:
    buddy, free, taken = Buddy(num_slots), binary_expansion(num_slots), []
    for _ in range(data.draw(st.integers(0, 30))):
        if taken and data.draw(st.booleans()):
            first, order = taken.pop(data.draw(st.integers(0, len(taken) - 1)))
            buddy.give_back(first, order)
            free = merged(free | {(first, order)})
        else:
            order = data.draw(st.integers(0, 8))
            serving = [chunk for chunk in free if chunk[1] >= order]
            assert buddy.has_chunk(order) == bool(serving)
            if not serving:
                continue
            first, source = min(serving, key=lambda chunk: (chunk[1], chunk[0]))
            assert buddy.take(order) == first
            free.remove((first, source))
            free |= {(first + (1 << half), half) for half in range(order, source)}
            taken.append((first, order))
        assert buddy.free_chunks() == lengths(free)
        assert merged(free) == free, "two free buddies are unmerged"
        assert all(first % num == 0 for first, num in buddy.free_chunks()), "a chunk is not aligned"
        num_taken = sum(1 << order for _, order in taken)
        assert buddy.num_free_slots == sum(num for _, num in buddy.free_chunks())
        assert buddy.num_free_slots == num_slots - num_taken
    for first, order in taken:
        buddy.give_back(first, order)
    assert buddy.free_chunks() == lengths(binary_expansion(num_slots)), "not as at the start"
