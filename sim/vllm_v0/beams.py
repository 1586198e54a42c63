"""Which beams survive a step of a beam search."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def parents(seed: int, row: int, num_generated: int, width: int) -> list[int]:
    """For each of `width` beams, which beam it goes on from when its request has generated so many tokens.

    As many candidates are drawn evenly and independently from (seed, row, num_generated): nobody knows the scores. So
    a beam has no child with probability (1 - 1/width)^width, and all have one ancestor about 2 (width - 1) steps back
    (the Wright-Fisher model). A beam with children goes on as itself; its other children take the places of those
    that have none.
    """
    state = _mix(_mix(_mix(seed) ^ row) ^ num_generated)
    drawn = [_mix(state + number) * width >> 64 for number in range(width)]
    spare = sorted(drawn)
    for parent in set(drawn):
        spare.remove(parent)
    others = iter(spare)
    return [number if number in drawn else next(others) for number in range(width)]


def _mix(value: int) -> int:
    """The output function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): 64 well mixed bits."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31
