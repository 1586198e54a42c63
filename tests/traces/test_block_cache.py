"""LRU and Belady over blocks, against recorded numbers, exhaustive search, and arithmetic."""

import json
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.traces.block_cache import lru_hits, optimal_hits
from kvtwin.traces.capacity_curve import lru_hit_curve


def ragged(requests: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, requests)])
    return offsets, np.array([block for blocks in requests for block in blocks], dtype=np.int64)


@pytest.mark.parametrize(
    ("capacity", "num_hits"), [(1000, 5028), (10_000, 25_179), (30_000, 37_867), (50_000, 40_441)]
)
def test_recorded_lru_hits_of_the_conversation_trace(
    capacity: int, num_hits: int, shared_dir: Path
) -> None:
    """Insert all, then evict the oldest; ids touched in list order, none pinned, no service time."""
    path = shared_dir / "traces/mooncake/conversation_trace.slice.jsonl"
    requests = [json.loads(line)["hash_ids"] for line in path.read_text().splitlines()]
    offsets, ids = ragged(requests)
    assert len(ids) == 122_598
    assert lru_hits(offsets, ids, capacity, tail_first=False).sum() == num_hits
    wanted = np.diff(offsets)
    assert optimal_hits(offsets, ids, capacity, wanted).sum() >= num_hits


@st.composite
def chained_requests(draw: st.DrawFn) -> list[list[int]]:
    """Paths of a small tree, from its root on: equal ids have equal ids before them."""
    children: dict[tuple[int, ...], int] = {}
    requests = []
    for _ in range(draw(st.integers(1, 7))):
        path = draw(st.lists(st.integers(0, 1), max_size=4))
        prefixes = [tuple(path[: depth + 1]) for depth in range(len(path))]
        requests.append([children.setdefault(prefix, len(children)) for prefix in prefixes])
    return requests


def naive_lru(requests: list[list[int]], capacity: int, tail_first: bool) -> list[int]:
    used: list[int] = []  # oldest first
    hits = []
    for blocks in requests:
        missing = [place for place, block in enumerate(blocks) if block not in used]
        hits.append(missing[0] if missing else len(blocks))
        for block in blocks[::-1] if tail_first else blocks:
            used = [other for other in used if other != block] + [block]
        used = used[max(0, len(used) - capacity) :]
    return hits


def most_hits(requests: list[list[int]], capacity: int, wanted: list[int]) -> int:
    """By trying everything that may be kept behind every request."""

    @cache
    def best(row: int, cached: frozenset[int]) -> int:
        if row == len(requests):
            return 0
        blocks = requests[row]
        missing = [place for place, block in enumerate(blocks) if block not in cached]
        hits = min(missing[0] if missing else len(blocks), wanted[row])
        there = sorted(cached | set(blocks))
        num_kept = min(capacity, len(there))
        kept = map(frozenset, combinations(there, num_kept))
        return hits + max(best(row + 1, choice) for choice in kept)

    return best(0, frozenset())


@settings(max_examples=examples(150))
@given(requests=chained_requests(), capacity=st.integers(1, 5), data=st.data())
def test_both_orders_on_small_trees(
    requests: list[list[int]], capacity: int, data: st.DataObject
) -> None:
    offsets, ids = ragged(requests)
    for tail_first in (False, True):
        hits = lru_hits(offsets, ids, capacity, tail_first=tail_first)
        assert hits.tolist() == naive_lru(requests, capacity, tail_first)
    wanted = [data.draw(st.integers(0, len(blocks))) for blocks in requests]
    hits = optimal_hits(offsets, ids, capacity, np.array(wanted))
    assert hits.sum() == most_hits(requests, capacity, wanted)


@settings(max_examples=examples(150))
@given(requests=chained_requests(), data=st.data())
def test_one_pass_gives_the_hits_of_every_capacity(
    requests: list[list[int]], data: st.DataObject
) -> None:
    wanted = np.array([data.draw(st.integers(0, len(blocks))) for blocks in requests])
    curve = lru_hit_curve(*ragged(requests), wanted)
    by_capacity = [
        np.minimum(naive_lru(requests, capacity, True), wanted).sum() for capacity in range(40)
    ]
    assert curve.tolist() == by_capacity[: len(curve)]
    assert set(by_capacity[len(curve) :]) <= {curve[-1]}
    assert len(curve) == 1 or curve[-2] < curve[-1], "its last block is one too many"


def test_what_nobody_needs_any_more_makes_room() -> None:
    offsets, ids = ragged([[0], [0], [1], [2], [1], [2]])
    assert optimal_hits(offsets, ids, 2, np.ones(6, int)).tolist() == [0, 1, 0, 0, 1, 1]


def rounds(num_clients: int, num_rounds: int, new_blocks: int) -> list[list[int]]:
    """Each round, every client comes once, with all it had and as much again."""
    return [
        list(range(client * 1000, client * 1000 + (number + 1) * new_blocks))
        for number in range(num_rounds)
        for client in range(num_clients)
    ]


@pytest.mark.parametrize("new_blocks", [1, 3])
def test_clients_that_add_as_much_each_round_hit_all_but_what_is_new(new_blocks: int) -> None:
    """r / (r + 1) in round r from 0, while all fits; then what LRU leaves of whoever comes next, in the end nothing.

    Clients come in turn, so all others have been used since, and are kept first: k of them in this round already.
    """
    num_clients, num_rounds = 4, 12
    offsets, ids = ragged(rounds(num_clients, num_rounds, new_blocks))
    lengths = np.diff(offsets).reshape(num_rounds, num_clients)

    def hits_of_round(capacity: int) -> list[list[int]]:
        hits = lru_hits(offsets, ids, capacity, tail_first=True)
        return hits.reshape(lengths.shape).tolist()

    everything = num_clients * num_rounds * new_blocks
    for number, hits in enumerate(hits_of_round(everything)):
        assert hits == [number * new_blocks] * num_clients
        assert sum(hits) / lengths[number].sum() == pytest.approx(number / (number + 1))
    capacity = everything // 2
    short = hits_of_round(capacity)
    for number, hits in enumerate(short):
        for client, num_hits in enumerate(hits):
            others = client * (number + 1) + (num_clients - 1 - client) * number
            left = capacity - others * new_blocks
            assert num_hits == min(max(left, 0), number * new_blocks)
    assert short[3] == [3 * new_blocks] * num_clients
    assert short[-1] == [0] * num_clients
