"""Which leading blocks of requests a cache of so many blocks holds: least recently used ones go, or those needed last.

Requests come one behind the other and take no time. A hit is the leading run of a request's blocks that are cached
when it comes; then all its blocks are cached, and only then blocks go until the cache is no larger than it may be.
Blocks are given as `Prefixes.block_ids` has them: `ids[offsets[i]:offsets[i + 1]]` are those of request i.
"""

from collections import OrderedDict
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from .arrays import Int64


def lru_hits(offsets: Int64, ids: Int64, capacity: int, *, tail_first: bool) -> Int64:
    """Hit blocks of each request, shape [n], where the blocks used longest ago go.

    Of one request the last block counts as used before the first one and goes first (`tail_first`: as in vLLM, where
    a prefix outlives what is behind it), or the other way round.
    """
    cached: OrderedDict[int, None] = OrderedDict()
    touch, evict = cached.move_to_end, cached.popitem
    hits = np.zeros(len(offsets) - 1, dtype=np.int64)
    bounds = offsets.tolist()
    for row, (begin, end) in enumerate(pairwise(bounds)):
        blocks = ids[begin:end].tolist()
        num_hits = 0
        for block in blocks:
            if block not in cached:
                break
            num_hits += 1
        hits[row] = num_hits
        if tail_first:
            blocks.reverse()
        for block in blocks:
            if block in cached:
                touch(block)
            else:
                cached[block] = None
        for _ in range(len(cached) - capacity):
            evict(last=False)
    return hits


def optimal_hits(offsets: Int64, ids: Int64, capacity: int, wanted: Int64) -> Int64:
    """Hit blocks of each request, shape [n], where the block needed last goes (Belady 1966): no order hits more.

    Request i can use its first `wanted[i]` blocks. Of blocks needed by the same request the deepest goes first. Ids
    are those of chained blocks: who uses one uses all before it, so a prefix is never needed later than what is
    behind it, and what is cached is whole prefixes.
    """
    num_requests = len(offsets) - 1
    next_use = _next_use(offsets, ids, wanted).tolist()
    cached: dict[int, int] = {}  # block: the request that needs it next
    heap: list[
        tuple[int, int, int]
    ] = []  # (-next use, -depth, block), also of what is not so any more
    hits = np.zeros(num_requests, dtype=np.int64)
    bounds = offsets.tolist()
    for row, (begin, end) in enumerate(pairwise(bounds)):
        num_hits, is_leading = 0, True
        for depth, block in enumerate(ids[begin:end].tolist()):
            if is_leading and block in cached:
                num_hits += 1
            else:
                is_leading = False
            needed_by = next_use[begin + depth]
            if needed_by < num_requests:
                cached[block] = needed_by
                heappush(heap, (-needed_by, -depth, block))
            else:
                cached.pop(block, None)  # nobody needs it any more
        hits[row] = min(num_hits, wanted[row])
        while len(cached) > capacity:
            minus_use, _, block = heappop(heap)
            if cached.get(block) == -minus_use:
                del cached[block]
    return hits


def _next_use(offsets: Int64, ids: Int64, wanted: Int64) -> Int64:
    """For each entry of `ids`, the next request that wants the same id; the number of requests if none does."""
    num_requests = len(offsets) - 1
    rows = np.repeat(np.arange(num_requests), np.diff(offsets))
    depth = np.arange(len(ids)) - offsets[rows]
    order = np.lexsort((rows, ids))
    user = np.where(depth < wanted[rows], rows, num_requests)[order]
    # Of each run of equal ids, from behind: the nearest user after each place.
    following = np.full(len(ids), num_requests, dtype=np.int64)
    starts = np.flatnonzero(np.concatenate(([True], ids[order][1:] != ids[order][:-1])))
    run = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(ids))))
    # A run's keys are below those of all runs before it, so that a minimum from behind stays within the run.
    shift = (len(starts) - 1 - run) * (num_requests + 1)
    nearest = np.minimum.accumulate((user - shift)[::-1])[::-1] + shift
    has_next = np.concatenate((run[1:] == run[:-1], [False])) if len(ids) else np.zeros(0, bool)
    following[order[:-1][has_next[:-1]]] = nearest[1:][has_next[:-1]]
    return following
