"""What must hold between the figures of SGLang's start-up lines.

Sources: `srt/mem_cache/memory_pool.py` (the buffers hold one page more than the pool) and
`srt/mem_cache/kv_cache_configurator.py` of 0.5.23.
"""

from collections.abc import Iterator
from dataclasses import replace

from .check import Check, compared, missing, not_applicable
from .facts import LogFacts, Stated
from .interval import Interval

# The largest page that a backend of 0.5.23 asks for, where the log does not state the page size.
_LARGEST_PAGE_TOKENS = 128


def sglang_checks(facts: LogFacts, kv_bytes_per_token: int | None, derived: str) -> list[Check]:
    several = derived or _several_pools(facts)
    checks = [*_loading(facts), *_fraction(facts), *_announced(facts, several)]
    if kv_bytes_per_token is not None:
        checks += _pool(facts, kv_bytes_per_token, several)
    return checks


def _several_pools(facts: LogFacts) -> str:
    """Why the reported pool is not all of the KV memory, if the log itself tells."""
    seen: set[tuple[str, str]] = set()
    for reading in facts.readings:
        if reading.name == "remark":
            return f"line {reading.line_number} tells of more than one kind of pool"
        if reading.name in ("k_size", "kv_size"):
            if (reading.rank, reading.name) in seen:
                return f"line {reading.line_number} reports a further pool"
            seen.add((reading.rank, reading.name))
    return ""


def _loading(facts: LogFacts) -> Iterator[Check]:
    for of_rank in facts.by_rank.values():
        before, weights = of_rank.get("free_before_load"), of_rank.get("weights")
        after = of_rank.get("free_after_load")
        if isinstance(after, Stated) and isinstance(before, Stated) and isinstance(weights, Stated):
            yield compared(
                "free before loading - weights", after, Interval.of(before) - Interval.of(weights)
            )


def _fraction(facts: LogFacts) -> Iterator[Check]:
    """Weights and KV stay within their share of what was free before.

    At most: the engine measures the free memory somewhat before it prints it, and a limit on
    tokens or a draft model may take more off.
    """
    stated = _kv_size(facts)
    if stated is None:
        return
    what = "free after loading - (1 - fraction) x free before loading"
    before, after, share = facts.free_before_load, facts.free_after_load, facts.memory_utilization
    if before is None or after is None or share is None:
        reason = missing(
            free_memory_before_loading=before, free_memory_after_it=after, mem_fraction_static=share
        )
        yield not_applicable(what, stated, reason)
        return
    rest = Interval.exactly(1) - Interval.of(share)
    yield compared(what, stated, Interval.of(after) - rest * Interval.of(before), relation="<=")


def _announced(facts: LogFacts, several: str) -> Iterator[Check]:
    pool, announced = facts.pool_tokens, facts.num_tokens
    if pool is None or announced is None or announced.name == "pool_tokens":
        return
    what = "tokens of the allocated pool"
    if several:
        yield not_applicable(what, announced, several)
    else:
        yield compared(what, announced, Interval.of(pool))


def _pool(facts: LogFacts, kv_bytes_per_token: int, several: str) -> Iterator[Check]:
    stated, tokens = _kv_size(facts), facts.pool_tokens or facts.num_tokens
    if stated is None:
        return
    what = f"tokens x {kv_bytes_per_token:,} bytes per token"
    if several:
        yield not_applicable(what, stated, several)
    elif tokens is None:
        yield not_applicable(what, stated, missing(tokens=tokens))
    else:
        page = facts.block_size.whole if facts.block_size else _LARGEST_PAGE_TOKENS
        slots = Interval(tokens.value, tokens.value + page)
        yield compared(what, stated, slots * Interval.exactly(kv_bytes_per_token))


def _kv_size(facts: LogFacts) -> Stated | None:
    """K and V of the pool as one figure."""
    k_size, v_size = facts.k_size, facts.v_size
    if k_size is None or v_size is None:
        return facts.kv_size
    return replace(
        k_size,
        name="kv_size",
        value=k_size.value + v_size.value,
        half_width=k_size.half_width + v_size.half_width,
    )
