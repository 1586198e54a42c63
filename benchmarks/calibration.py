"""A fixed pure-Python loop, so that figures of different machines and days can be compared.

The engine is interpreted Python over integers and dictionaries, and so is this loop: what slows
one of them down, a slower core or a busy neighbour, slows the other.
"""

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

ITERATIONS = 500_000  # one loop-unit
_KEYS = 1024  # entries of the dictionary: small enough for the fastest cache


def loop_seconds() -> float:
    """Wall seconds that one loop-unit takes now."""
    counts: dict[int, int] = {}
    started = time.perf_counter()
    for i in range(ITERATIONS):
        key = i * 7919 % _KEYS
        counts[key] = counts.get(key, 0) + (i >> 3)
    return time.perf_counter() - started


def calibrated(work: Callable[[], Result]) -> tuple[Result, float]:
    """What `work` returns, and a loop-unit's mean seconds right before and right after it."""
    before = loop_seconds()
    result = work()
    return result, (before + loop_seconds()) / 2
