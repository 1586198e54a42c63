"""Search for the longest request."""

from collections.abc import Callable


def largest_that(holds: Callable[[int], bool], limit: int) -> int:
    """The largest number from 1 to `limit` that `holds`, or 0.

    `holds` must be true up to some number and false beyond it.
    """
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
