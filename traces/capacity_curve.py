"""What a least-recently-used cache of every size hits, from one pass over stack distances.

Mattson et al. 1970, "Evaluation techniques for storage hierarchies": a cache of N blocks holds the N used last, so a
use of a block hits in every cache that is larger than the number of blocks used since. Blocks are chained: who uses one
uses all before it, and of one request the first block counts as used last (as in vLLM). So what is left of a request's
blocks that nobody has used since is the end of them, and stands together in the stack.
"""

from itertools import pairwise

import numpy as np

from .arrays import Int64


def lru_hit_curve(offsets: Int64, ids: Int64, wanted: Int64) -> Int64:
    """Hit blocks of all requests together in a cache of 0, 1, 2 ... blocks, as far as more blocks hit more.

    Shape [n + 1], n the fewest blocks with which nothing is lost to capacity. At each size it is the sum of `lru_hits`
    with `tail_first`, of request i its first `wanted[i]` blocks at most; for `offsets` and `ids` see there.
    """
    unique, dense = np.unique(ids, return_inverse=True)
    last_user = np.full(len(unique), -1, dtype=np.int64)
    # Hits that a cache of so many blocks has beyond one of a block less, as differences between neighbours.
    steps = np.zeros(len(unique) + 2, dtype=np.int64)
    left = _Sums(len(wanted))  # of each request, blocks that nobody has used since
    for row, (begin, end) in enumerate(pairwise(offsets.tolist())):
        blocks = dense[begin:end]
        users = last_user[blocks]
        starts = np.flatnonzero(np.diff(users, prepend=-2)).tolist()
        for first, behind in pairwise([*starts, len(blocks)]):
            user = int(users[first])
            if user < 0:
                break
            num_hits = min(behind, int(wanted[row])) - first
            if num_hits > 0:
                smallest = left.behind(user) + 1
                steps[smallest] += 1
                steps[smallest + num_hits] -= 1
        # What is above a run counts as it was when the request came, so nothing changes before all are counted.
        for first, behind in pairwise([*starts, len(blocks)]):
            if users[first] >= 0:
                left.add(int(users[first]), first - behind)
        left.add(row, len(blocks))
        last_user[blocks] = row
    more = np.cumsum(steps)
    last = np.flatnonzero(more)
    return np.cumsum(more[: last[-1] + 1 if len(last) else 1])


class _Sums:
    """Numbers by index, and the sum of all behind one, both in logarithmic time (Fenwick 1994)."""

    def __init__(self, num: int) -> None:
        self._sums = [0] * (num + 1)

    def add(self, index: int, number: int) -> None:
        at = len(self._sums) - 1 - index
        while at < len(self._sums):
            self._sums[at] += number
            at += at & -at

    def behind(self, index: int) -> int:
        at, total = len(self._sums) - 2 - index, 0
        while at > 0:
            total += self._sums[at]
            at &= at - 1
        return total
