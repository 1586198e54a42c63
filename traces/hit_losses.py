"""What a prefix cache could hit at best, and where a real one loses it, in tokens."""

from dataclasses import dataclass

import numpy as np

from .arrays import Int64
from .block_cache import lru_hits, optimal_hits
from .capacity_curve import lru_hit_curve
from .prefixes import find_prefixes
from .trace import Trace

DEFINITION = (
    "requests in order of arrival, each cached, with its output, before the next one comes;"
    " running requests pin nothing"
)
# Share of the hits at which a larger cache is hardly worth it.
MOST = 0.9


@dataclass(frozen=True)
class CurvePoint:
    """Prompt tokens that a least-recently-used cache of `num_blocks` hits."""

    num_blocks: int
    num_hit_tokens: int


@dataclass(frozen=True)
class HitLosses:
    """Prompt tokens that an infinite token-granular cache hits, what is lost of them, and what is left.

    `num_blocks` None: a cache without end, in which nothing is lost to capacity and eviction order. All but the
    first and `num_infinite_hit_tokens` are parts of the latter, and add up to it. `curve`: hits by capacity, from the
    smallest cache that hits anything to the smallest in which nothing is lost to capacity, whichever `num_blocks` is.
    """

    block_tokens: int
    num_blocks: int | None
    known_block_tokens: int | None  # the grain of the trace's content; None if it has none
    num_prompt_tokens: int
    longest_shared_prefix: int  # tokens
    num_infinite_hit_tokens: int
    lost_to_blocks: int  # behind the last full block of what is shared
    lost_to_last_token: int  # it is computed in any case, and the full block that it ends with it
    lost_to_capacity: int  # even if the block needed last goes first
    lost_to_order: int  # the least recently used goes instead
    num_hit_tokens: int
    curve: tuple[CurvePoint, ...]  # ascending; empty if no cache hits
    blocks_for_most: (
        int | None
    )  # the fewest with which LRU hits MOST of what it can; None if no cache hits

    def __post_init__(self) -> None:
        parts = (
            self.lost_to_blocks,
            self.lost_to_last_token,
            self.lost_to_capacity,
            self.lost_to_order,
            self.num_hit_tokens,
        )
        assert min(parts) >= 0, f"a negative part: {self}"
        assert sum(parts) == self.num_infinite_hit_tokens, f"parts do not add up: {self}"

    @property
    def num_new_tokens(self) -> int:
        """Prompt tokens that no earlier request is known to have had."""
        return self.num_prompt_tokens - self.num_infinite_hit_tokens

    @property
    def reason(self) -> str | None:
        """Why nothing hits, if nothing does."""
        if self.num_hit_tokens:
            return None
        block, longest = self.block_tokens, self.longest_shared_prefix
        if self.known_block_tokens is None:
            return "the trace does not say what its prompts are made of"
        if not longest:
            return "no two prompts are known to begin alike"
        if self.num_infinite_hit_tokens == self.lost_to_blocks:
            return f"longest shared prefix {longest:,}, block {block:,}"
        if not (self.lost_to_capacity or self.lost_to_order):
            return (
                f"longest shared prefix {longest:,}, block {block:,}: it is a whole prompt, and the last token "
                "of a prompt is computed"
            )
        return f"the cache has {self.num_blocks:,} blocks: what is shared is evicted before it is used again"


def find_hit_losses(trace: Trace, block_tokens: int, num_blocks: int | None) -> HitLosses:
    """Hits of full blocks of `block_tokens` in a cache of `num_blocks`, all that is lost on the way, and why.

    A request caches the full blocks of its first P + O - 1 tokens; those of which the trace says nothing take room
    like others. Both sizes are at least 1.
    """
    prompts = np.concatenate([chunk.num_prompt_tokens for chunk in trace.chunks])
    outputs = np.concatenate([chunk.num_output_tokens for chunk in trace.chunks])
    prefixes = find_prefixes(trace)
    seen = np.minimum(prefixes.num_seen_tokens(), prompts)
    usable = np.minimum(seen, prompts - 1) // block_tokens
    optimal = least_recent = usable
    offsets, ids = prefixes.block_ids(prompts + outputs - 1, block_tokens)
    curve = lru_hit_curve(offsets, ids, usable)
    if num_blocks is not None:
        optimal = optimal_hits(offsets, ids, num_blocks, usable)
        least_recent = np.minimum(lru_hits(offsets, ids, num_blocks, tail_first=True), usable)
    infinite = int(seen.sum())
    full, capped, best, real = (
        int(blocks.sum()) * block_tokens
        for blocks in (seen // block_tokens, usable, optimal, least_recent)
    )
    content = trace.chunks[0].content
    return HitLosses(
        block_tokens=block_tokens,
        num_blocks=num_blocks,
        known_block_tokens=None if content is None else content.block_tokens,
        num_prompt_tokens=int(prompts.sum()),
        longest_shared_prefix=int(seen.max(initial=0)),
        num_infinite_hit_tokens=infinite,
        lost_to_blocks=infinite - full,
        lost_to_last_token=full - capped,
        lost_to_capacity=capped - best,
        lost_to_order=best - real,
        num_hit_tokens=real,
        curve=tuple(
            CurvePoint(size, int(curve[size]) * block_tokens) for size in _sizes_to_show(curve)
        ),
        blocks_for_most=int(np.searchsorted(curve, curve[-1] * MOST)) if curve[-1] else None,
    )


def _sizes_to_show(curve: Int64) -> list[int]:
    """The first and the last size of which a block more hits more, and 1, 2 and 5 of each power of ten in between."""
    if not curve[-1]:
        return []
    first, last = int(np.flatnonzero(curve)[0]), len(curve) - 1
    round_ones = (digit * 10**power for power in range(len(str(last))) for digit in (1, 2, 5))
    between = (size for size in round_ones if first < size < last)
    return [first, *between, last] if first < last else [first]
