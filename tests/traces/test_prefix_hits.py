"""Hits of an infinite cache, by tokens and by blocks, against block ids looked up one by one."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.traces import Content, Trace, TraceChunk, content_of_block_ids, prefix_hits


def trace_of(content: Content, prompts: list[int], outputs: int = 1) -> Trace:
    ones = np.ones(len(prompts), dtype=np.int64)
    return Trace("t", "any", (TraceChunk(ones, np.array(prompts), outputs * ones, -ones, content),))


@given(
    chains=st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=8),
    rests=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    block=st.integers(1, 5),
)
def test_floor_format(chains: list[list[int]], rests: list[int], block: int) -> None:
    """Blocks of four tokens; what is left of a prompt has no id. An id names all before it, too."""
    numbers: dict[tuple[int, ...], int] = {}
    ids = [
        [numbers.setdefault(tuple(chain[: n + 1]), len(numbers)) for n in range(len(chain))]
        for chain in chains
    ]
    prompts = [4 * len(row) + rest or 1 for row, rest in zip(ids, rests, strict=False)]
    offsets = np.cumsum([0, *map(len, ids)])
    flat = np.array([i for row in ids for i in row], dtype=np.uint64)
    own, fine = prefix_hits(
        trace_of(content_of_block_ids(4, flat, offsets, np.array(prompts)), prompts), block
    )
    seen: set[int] = set()
    hit_blocks = []
    for row in ids:
        is_hit = [i in seen for i in row]
        hit_blocks.append((*is_hit, False).index(False))
        seen.update(row)
    assert (own.num_hit_blocks, own.num_blocks) == (sum(hit_blocks), sum(map(len, ids)))
    assert (own.num_hit_tokens, own.num_tokens) == (4 * sum(hit_blocks), sum(prompts))
    assert fine.num_hit_blocks == sum(4 * n // block for n in hit_blocks)
    assert fine.num_hit_tokens == block * fine.num_hit_blocks
    assert fine.num_blocks == sum(prompt // block for prompt in prompts)


def hits_of(*rows: tuple[int, list[tuple[int, int, int]]], grain: int = 4) -> list[tuple[int, ...]]:
    """(prompt, pieces) of each request: hit blocks, hit tokens of each of the heads of the trace."""
    pieces = np.array([piece for _, row in rows for piece in row], np.int64).reshape(-1, 3)
    content = Content(grain, np.cumsum([0, *(len(row) for _, row in rows)]), *pieces.T)
    trace = trace_of(content, [prompt for prompt, _ in rows])
    heads = [prefix_hits(trace.head(n + 1))[0] for n in range(len(rows))]
    sums = [(0, 0, 0), *((h.num_hit_blocks, h.num_blocks, h.num_hit_tokens) for h in heads)]
    return [tuple(np.subtract(b, a).tolist()) for a, b in pairwise(sums)]


def test_a_partial_block_is_hit_whole_or_not_at_all() -> None:
    assert hits_of(
        (6, [(0, 0, 6)]),
        (6, [(0, 0, 6)]),  # all of it, its partial last block too
        (8, [(0, 0, 8)]),  # the second block was cached up to its sixth token only
        (7, [(0, 0, 7)]),  # now all of it was
        (9, [(0, 0, 6)]),  # nothing is known of three tokens, which are in no block
    ) == [(0, 2, 0), (2, 2, 6), (1, 2, 4), (2, 2, 7), (2, 2, 6)]
