"""What must hold between the figures of TensorRT-LLM's start-up lines.

Sources: `tensorrt_llm/_torch/pyexecutor/_util.py` (PyTorch backend) and
`cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp` (C++ runtime, which rounds blocks up).
"""

from collections.abc import Iterator

from .check import Check, compared, missing, not_applicable
from .facts import LogFacts, Stated
from .interval import Interval


def trtllm_checks(facts: LogFacts, kv_bytes_per_token: int | None, derived: str) -> list[Check]:
    several = derived or _several_windows(facts)
    return [
        *_profile(facts),
        *_fraction(facts),
        *_blocks(facts, several),
        *_pool(facts, kv_bytes_per_token, several),
    ]


def _several_windows(facts: LogFacts) -> str:
    """Whether the last pool is divided among attention windows, each with blocks of its own."""
    windows: set[tuple[str, int]] = set()
    reason, ended = "", False
    for reading in facts.readings:
        if isinstance(reading, Stated) and reading.name == "window_size":
            if ended:
                windows, reason, ended = set(), "", False
            windows.add((reading.rank, reading.whole))
            if len({window for rank, window in windows if rank == reading.rank}) > 1:
                reason = f"line {reading.line_number} tells of a further attention window"
        ended = ended or reading.name == "kv_size"
    return reason


def _profile(facts: LogFacts) -> Iterator[Check]:
    """PyTorch: the share of what the peak leaves, with the trial pool given back."""
    for rank, of_rank in facts.by_rank.items():
        available = of_rank.get("available_kv")
        if not isinstance(available, Stated):
            continue
        what = "(total - peak + trial pool) x fraction"
        names = ("total_memory", "peak_used", "profiling_kv", "memory_utilization")
        known = {name: facts.of_rank(name, rank) for name in names}
        terms = [Interval.of(stated) for stated in known.values() if stated is not None]
        if len(terms) < len(names):
            yield not_applicable(what, available, missing(**known))
        else:
            total, peak, trial, share = terms
            yield compared(what, available, (total - peak + trial) * share)


def _fraction(facts: LogFacts) -> Iterator[Check]:
    """C++: the share of what is free after loading, rounded up to a block."""
    size, free, share = facts.kv_size, facts.free_after_load, facts.memory_utilization
    if size is None or facts.available_kv is not None:
        return
    what = "free after loading x fraction"
    tokens, block_size = facts.num_tokens, facts.block_size
    if tokens is not None and not tokens.value:
        return
    if free is None or share is None or tokens is None or block_size is None:
        reason = missing(
            free_memory=free, fraction=share, tokens=tokens, tokens_per_block=block_size
        )
        yield not_applicable(what, size, reason)
        return
    given = Interval.of(free) * Interval.of(share)
    block_bytes = Interval.of(size).high / tokens.value * block_size.value
    yield compared(what, size, Interval(given.low, given.high + block_bytes))


def _blocks(facts: LogFacts, several: str) -> Iterator[Check]:
    tokens, blocks, block_size = facts.num_tokens, facts.num_gpu_blocks, facts.block_size
    if tokens is None:
        return
    what = "blocks x tokens per block"
    if several:
        yield not_applicable(what, tokens, several)
    elif blocks is None or block_size is None:
        yield not_applicable(what, tokens, missing(blocks=blocks, tokens_per_block=block_size))
    else:
        yield compared(what, tokens, Interval.exactly(blocks.value * block_size.value))


def _pool(facts: LogFacts, kv_bytes_per_token: int | None, several: str) -> Iterator[Check]:
    tokens, size, stated = facts.num_tokens, facts.kv_size, facts.kv_bytes_per_token
    if stated is not None and kv_bytes_per_token is not None:
        what = f"{kv_bytes_per_token:,} bytes per token"
        yield compared(what, stated, Interval.exactly(kv_bytes_per_token))
    if kv_bytes_per_token is None:
        kv_bytes_per_token = stated.whole if stated is not None else None
    if tokens is None or size is None or kv_bytes_per_token is None:
        return
    per_token = Interval.exactly(kv_bytes_per_token)
    what = f"tokens x {kv_bytes_per_token:,} bytes per token"
    if several:
        yield not_applicable(what, size, several)
        return
    yield compared(what, size, Interval.of(tokens) * per_token)
    available = facts.available_kv
    if available is not None:
        # At most: a limit on tokens may be set. The last block may be begun.
        block_size = facts.block_size.value if facts.block_size is not None else 0
        most = Interval.of(available) / per_token + Interval.exactly(block_size)
        what = f"memory for KV / {kv_bytes_per_token:,} bytes per token"
        yield compared(what, tokens, most, relation="<=")
