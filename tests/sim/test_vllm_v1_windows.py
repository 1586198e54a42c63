"""Window groups of the V1 pool against their definitions: what hits, what is kept to be found, what is given back.

A position of a group of window W attends to W tokens, itself included: so whoever goes on behind L blocks reads the
ceil((W - 1) / block size) before them, or all of them if they are fewer.
"""

from collections.abc import Sequence as Seq

import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.sim.vllm_v1.block_pool import NULL_BLOCK, BlockPool
from kvtwin.sim.vllm_v1.cache_manager import CacheManager
from kvtwin.sim.vllm_v1.request import Request
from kvtwin.sim.vllm_v1.settings import SchedulerSettings

Windows = tuple[int | None, ...]
ALL_KINDS: list[Windows] = [
    (None,),
    (5,),
    (None, None),
    (4, 4),
    (None, 5),
    (5, None),
    (3, 9),
    (9, 3),
    (7, None, None, 3, 7),
    (None, 2, 6, 11),
]


def manager_of(windows: Windows, num_blocks: int = 200, **fields: object) -> CacheManager:
    options = {"block_size": 2, "max_model_len": 1000, "max_num_batched_tokens": 8} | fields
    made = SchedulerSettings(num_gpu_blocks=num_blocks, windows=windows, **options)  # type: ignore[arg-type]
    return CacheManager(made, BlockPool(num_blocks))


def request_of(num_tokens: int, row: int = 0, max_tokens: int = 8) -> Request:
    """A prompt whose blocks are like those of every other one made here."""
    request = Request(row, num_tokens, max_tokens, 1000)
    request.numbers = list(range(1, num_tokens + max_tokens + 1))
    return request


def is_enough(window: int | None, size: int, cached: Seq[bool], num_blocks: int) -> bool:
    """Whether what a group has of a prompt lets somebody go on behind `num_blocks` blocks of it."""
    num_read = num_blocks if window is None else -(-(window - 1) // size)
    return all(cached[max(0, num_blocks - num_read) : num_blocks])


@settings(max_examples=examples(300))
@given(
    windows=st.sampled_from(ALL_KINDS),
    size=st.integers(1, 4),
    num_tokens=st.integers(1, 40),
    gaps=st.lists(st.integers(0, 200), max_size=12),
)
def test_a_hit_is_the_longest_prefix_that_every_group_can_go_on_from(
    windows: Windows, size: int, num_tokens: int, gaps: list[int]
) -> None:
    cache, request = manager_of(windows, 300, block_size=size), request_of(num_tokens)
    num_blocks = num_tokens // size
    # Everything is in the pool, the last block included, but some blocks of some groups.
    missing = {divmod(gap % max(1, num_blocks * len(windows)), max(1, num_blocks)) for gap in gaps}
    cached = [
        [(number, place) not in missing for place in range(num_blocks)]
        for number in range(len(windows))
    ]
    blocks = [cache.pool.take(num_blocks) for _ in windows]
    for group, ids, found in zip(cache.groups, blocks, cached, strict=True):
        for block, key, is_there in zip(
            ids, group.keys(request, 0, num_blocks), found, strict=True
        ):
            if is_there:
                cache.pool.store(block, key)

    def longest(numbers: Seq[int], most: int) -> int:
        return max(
            length
            for length in range(most + 1)
            if all(is_enough(windows[n], size, cached[n], length) for n in numbers)
        )

    most = (num_tokens - 1) // size
    length = longest(range(len(windows)), most)
    hit = cache.find(request)
    assert hit.num_tokens == length * size
    for window, ids, hits in zip(windows, blocks, hit.blocks, strict=True):
        num_read = length if window is None else -(-(window - 1) // size)
        first = max(0, length - num_read)
        assert hits == [NULL_BLOCK] * first + ids[first:length]
    # Groups of full attention are asked first, or else the first window; the others only shorten what these have.
    kind = None if None in windows else windows[0]
    alone = longest([n for n, window in enumerate(windows) if window == kind], most)
    assert hit.boundary == (alone * size if alone > length else 0)


@settings(max_examples=examples(200))
@given(
    window=st.integers(1, 20),
    size=st.integers(1, 4),
    interval=st.sampled_from([None, 0, 1, 2, 3, 5]),
    num_prompt_tokens=st.integers(1, 60),
    boundary=st.integers(0, 14),
    cut=st.tuples(st.integers(0, 15), st.integers(0, 15)),
)
def test_what_is_kept_ends_where_somebody_can_resume(
    window: int,
    size: int,
    interval: int | None,
    num_prompt_tokens: int,
    boundary: int,
    cut: tuple[int, int],
) -> None:
    """Before the prompt's last token, where this prompt could not resume, and at the end of every interval."""
    retention = None if interval is None else interval * size
    cache = manager_of((window,), block_size=size, prefix_cache_retention_interval=retention)
    (group,) = cache.groups
    request = request_of(num_prompt_tokens)
    request.boundary = boundary * size
    resume = {(num_prompt_tokens - 1) // size, boundary}
    if interval is None:
        resume |= set(range(100))
    elif interval:
        resume |= set(range(0, 100, interval))
    num_read = -(-(window - 1) // size)
    read = {place for end in resume for place in range(end - num_read, end)}
    begin, end = min(cut), max(cut)
    kept = group.is_kept(request, begin, end)
    expected = [place in read for place in range(begin, end)]
    assert ([True] * (end - begin) if kept is None else list(kept)) == expected


@settings(max_examples=examples(100))
@given(
    window=st.integers(1, 12),
    size=st.integers(1, 4),
    advances=st.lists(st.integers(0, 9), min_size=1, max_size=12),
)
def test_blocks_are_given_back_when_their_last_token_is_out_of_sight(
    window: int, size: int, advances: list[int]
) -> None:
    (group,) = manager_of((window,), block_size=size).groups
    request = request_of(1)
    num_blocks = -(-(sum(advances) + 1) // size)
    request.tables = [list(range(1, num_blocks + 1))]
    computed, gone = 0, set[int]()
    for advance in advances:
        computed += advance
        # The next token is at position `computed` and reads from position computed - W + 1 on.
        out = {n for n in range(num_blocks) if (n + 1) * size - 1 < computed - window + 1}
        assert group.num_skipped_blocks(computed) == len(out)
        given_back = group.take_skipped(request, computed)
        assert given_back == [n + 1 for n in sorted(out - gone, reverse=True)]
        gone = out
        assert request.tables[0] == [NULL_BLOCK if n in gone else n + 1 for n in range(num_blocks)]


@pytest.mark.parametrize(
    ("fields", "num_needed"),
    [
        # 40 tokens are 10 blocks of 4 of full attention. The window sees 8 tokens behind it and 8 in a step: 4 + 1.
        ({}, 15),
        ({"async_scheduling": True}, 17),  # two steps are under way: 8 + 16 tokens, 6 + 1 blocks
        ({"max_num_batched_tokens": 7}, 15),  # 15 tokens are 4 blocks, too
        ({"max_num_batched_tokens": 9}, 16),
        ({"max_num_batched_tokens": 100}, 20),  # never more than its tokens
        ({"scheduler_reserve_full_isl": False}, 4),  # the chunk of 8, in both
        ({"watermark": 0.1}, 15 + 3),
    ],
)
def test_an_admission_asks_for_what_a_window_holds_at_most(
    fields: dict[str, object], num_needed: int
) -> None:
    """In a pool of 30 blocks and the null block, of which others hold all but so many."""
    for num_free in (num_needed - 1, num_needed):
        cache = manager_of((None, 9), 31, block_size=4, **fields)
        cache.pool.take(30 - num_free)
        request = request_of(40)
        admitted = cache.admit(request, cache.find(request), 8, beside_others=True)
        assert admitted == (num_free == num_needed)
        assert len(cache.pool.free) == (num_free - 4 if admitted else num_free)


def test_nobody_beside_whom_blocks_would_be_held_back() -> None:
    cache = manager_of((None,), 31, block_size=4, watermark=0.5)
    cache.pool.take(20)
    request = request_of(40)
    assert not cache.admit(request, cache.find(request), 8, beside_others=True)
    assert cache.admit(request, cache.find(request), 8, beside_others=False)


@pytest.mark.parametrize("batched", [1, 8])
@pytest.mark.parametrize(("is_held", "num_needed"), [(True, 2), (False, 8)])
def test_found_blocks_cost_what_they_take_from_the_queue(
    is_held: bool, num_needed: int, batched: int
) -> None:
    """A prompt of 20 tokens of which 16 are found, 4 blocks of 4 in each group; of the window, 9 wide, the last 2.

    The block behind them is to be taken in both groups. If nobody holds what was found, 4 + 2 leave the queue, too.
    That a window holds 4 blocks at most if steps are of one token changes nothing: what was found is beyond that.
    """
    for num_free in (num_needed - 1, num_needed):
        cache = manager_of(
            (None, 9),
            60,
            block_size=4,
            max_num_batched_tokens=batched,
            prefix_cache_retention_interval=None,
        )
        first, second = request_of(20), request_of(20, row=1)
        assert cache.admit(first, cache.find(first), 20, beside_others=False)
        full, window = (list(table) for table in first.tables)
        if not is_held:
            cache.free(first)
            cache.pool.touch([full[4], *window[:2], window[4]])  # all but what will be found
        plain = [block for block in cache.pool.free if not cache.pool.keys[block]]
        for block in plain[: len(cache.pool.free) - num_free]:
            del cache.pool.free[block]
        assert len(cache.pool.free) == num_free
        hit = cache.find(second)
        assert hit.blocks == [full[:4], [NULL_BLOCK] * 2 + window[2:4]]
        admitted = cache.admit(second, hit, 4, beside_others=False)
        assert admitted == (num_free == num_needed)
        assert len(cache.pool.free) == (0 if admitted else num_free)
