"""Where the pool is at an instant, recounted: see the table of parts in docs/design.md."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .claims import Claims, Flags
from .planned import PlannedTokens

# What is compared with the recorder, one by one; of policies whose rules are not known here, two
# pairs are compared as one.
PARTS = (
    ("live",),
    ("reserved",),
    ("internal",),
    ("rounding",),
    ("cached",),
    ("external",),
    ("free",),
)
PARTS_OF_OTHERS = (
    ("live",),
    ("reserved",),
    ("internal", "rounding"),
    ("cached",),
    ("external", "free"),
)
_ROUNDING, _INTERNAL, _RESERVED, _LIVE = 1, 2, 3, 4


@dataclass(frozen=True)
class PoolRules:
    """What the audit has to know of a policy, restated from docs/design.md and its sources.

    `asked`: slots that the policy asks its allocator for, from (prompt, output, max_model_len,
    slots granted). `need`: slots that free runs must have to serve a request, from (prompt, output,
    known tokens, max_model_len); None: any free slot would do. `aligned`: free runs count as the
    power-of-two pieces of a buddy allocator. `num_null_blocks`: the first ones, which the allocator
    keeps for itself.
    """

    asked: Callable[[int, int, int, int], int] = lambda prompt, output, longest, granted: granted
    need: Callable[[int, int, int, int], int] | None = None
    aligned: bool = False
    num_null_blocks: int = 0


def _power(num: int) -> int:
    """The smallest power of two that is at least `num`."""
    return 1 << (num - 1).bit_length()


def _orca(asked: Callable[[int, int, int], int]) -> PoolRules:
    """Reservations of the three Orcas (Kwon et al. 2023, 6.1), never above max_model_len."""
    return PoolRules(
        lambda prompt, output, longest, granted: min(longest, asked(prompt, output, longest)),
        lambda prompt, output, known, longest: _power(min(longest, asked(prompt, output, longest))),
        aligned=True,
    )


_WHOLE_POOL = 1 << 62
RULES = {
    "static": PoolRules(need=lambda *_: _WHOLE_POOL),
    "static-iteration": PoolRules(need=lambda *_: _WHOLE_POOL),
    "slots": PoolRules(need=lambda *_: _WHOLE_POOL),
    "orca-max": _orca(lambda prompt, output, longest: longest),
    "orca-pow2": _orca(lambda prompt, output, longest: prompt + _power(output)),
    "orca-oracle": _orca(lambda prompt, output, longest: prompt + output),
    "contiguous": PoolRules(need=lambda prompt, output, known, longest: known),
    "paged": PoolRules(),
    "vllm-v0": PoolRules(),
    "vllm-v0-prefix-caching": PoolRules(),
    "vllm-v1": PoolRules(num_null_blocks=1),
    "vllm-v1-no-caching": PoolRules(num_null_blocks=1),
    "no-cache": PoolRules(need=lambda *_: 0),
}
"""By name of the policy."""


def too_short(is_free: Flags, need: int, aligned: bool) -> int:
    """Free slots in runs, or in a buddy's pieces, of fewer than `need` slots."""
    if aligned:
        return int(is_free.sum()) - _in_pieces(is_free, need)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_free.view(np.int8), [0]])))
    lengths = edges[1::2] - edges[::2]
    return int(lengths[lengths < need].sum())


def _in_pieces(is_free: Flags, need: int) -> int:
    """Free slots in aligned pieces of at least `need`, a power of two.

    The pool is cut into the powers of two of its size, largest first; pieces do not cross the cuts.
    """
    num_slots, begin, count = len(is_free), 0, 0
    while num_slots - begin >= need:
        chunk = 1 << (num_slots - begin).bit_length() - 1
        pieces = is_free[begin : begin + chunk].reshape(-1, need)
        count += int(pieces.all(axis=1).sum()) * need
        begin += chunk
    return count


def part_of_slots(
    claims: Claims,
    holds: Flags,
    before: Sequence[int],
    ends: Sequence[int],
    asked: Sequence[int],
    num_slots: int,
) -> np.ndarray:
    """0 for a slot that nobody holds, else what the owner that has most use for it makes of it: [num_slots].

    By owner: `before`, its committed tokens at the start of the step; `ends`, its E, 0 once it has
    finished; `asked`, the slots asked for. `holds`: whether an entry's slot holds its token on the
    device. While a copy is in progress, the source is live and the target is reserved.
    """
    owners, positions = claims.owners, claims.positions
    end = np.array(ends, dtype=np.int64)[owners]
    is_live = holds & ~claims.is_arriving
    is_live &= positions < np.minimum(np.array(before, dtype=np.int64)[owners], end)
    is_reserved = (positions < end) & ~claims.is_source
    is_asked = positions < np.array(asked, dtype=np.int64)[owners]
    parts = np.zeros(num_slots, dtype=np.int64)
    of_entry = np.select([is_live, is_reserved, is_asked], [_LIVE, _RESERVED, _INTERNAL], _ROUNDING)
    np.maximum.at(parts, claims.slots, of_entry)
    return parts


def recount(
    parts: np.ndarray,
    is_cached: Flags,
    sizes: np.ndarray,
    whole: int,
    policy: str,
    planned: PlannedTokens,
    max_model_len: int,
    block_slots: int,
    watermark_slots: int,
    refused: tuple[int, int] | None,
) -> dict[str, int]:
    """Slots of each part, by name, as the recorder counts them.

    Where groups of layers are of different sizes, a slot of a block is `whole` of the recorder's, of which a token of
    the group that has the block takes `sizes` ([num_slots]) and the rest is rounding; `block_slots` and
    `watermark_slots` are in those of blocks.
    `refused`: (row, known tokens) of the head of the queue, if the last plan refused it for memory.
    """
    rules, external = RULES.get(policy, PoolRules()), 0
    is_free = (parts == 0) & ~is_cached
    num_null_slots = rules.num_null_blocks * block_slots
    is_free[:num_null_slots] = False
    num_free = int(is_free.sum())
    if refused is not None:
        row, known = refused
        lengths = planned.num_prompt_tokens[row], planned.num_output_tokens[row]
        if rules.need is None:
            external = min(num_free, watermark_slots)
        else:
            external = too_short(is_free, rules.need(*lengths, known, max_model_len), rules.aligned)
    held = np.bincount(parts, sizes, minlength=_LIVE + 1).astype(np.int64).tolist()
    held[_ROUNDING] += int((whole - sizes)[parts > 0].sum()) + whole * num_null_slots
    return {
        "live": held[_LIVE],
        "reserved": held[_RESERVED],
        "internal": held[_INTERNAL],
        "rounding": held[_ROUNDING],
        "cached": int(is_cached.sum()) * whole,
        "external": external * whole,
        "free": (num_free - external) * whole,
    }
