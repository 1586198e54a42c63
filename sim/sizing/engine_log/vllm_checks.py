"""What must hold between the figures of vLLM's start-up lines.

Sources: `v1/worker/gpu_worker.py` (`determine_available_memory`) and `v1/core/kv_cache_utils.py`
(`get_kv_cache_capacity`, `_check_enough_kv_cache_memory`) of 0.32.0; V0's `worker/worker.py`.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from math import prod

from .check import Check, compared, missing, not_applicable
from .facts import LogFacts, Stated, StatedText
from .interval import Interval

# What attention backends take, the default first; logs seldom say it.
_BLOCK_SIZES = (16, 1, 8, 32, 64, 128, 256)
# Printed more than once in a start, with different rounding.
_REPEATED = ("weights", "available_kv", "cuda_graphs", "total_memory")


def vllm_checks(facts: LogFacts, kv_bytes_per_token: int | None, derived: str) -> list[Check]:
    derived = derived or _derived(facts)
    checks = [*_budget(facts), *_repeated(facts), *_available(facts)]
    checks += _concurrency(facts, derived)
    if kv_bytes_per_token is not None:
        checks += _pool(facts, kv_bytes_per_token, derived)
        checks += _refusal(facts, kv_bytes_per_token, derived)
    return checks


def _derived(facts: LogFacts) -> str:
    """Why the printed size is not blocks x block size, if the log itself tells."""
    for reading in facts.readings:
        if isinstance(reading, StatedText) and reading.name == "remark":
            if "is disabled" in reading.value:  # window layers are then kept in full
                continue
            return f"line {reading.line_number} tells of a hybrid model, whose size is derived"
    return ""


def _budget(facts: LogFacts) -> Iterator[Check]:
    if facts.budget is None:
        return
    what = "total x utilization"
    if facts.total_memory is None or facts.memory_utilization is None:
        reason = missing(
            total_memory=facts.total_memory, memory_utilization=facts.memory_utilization
        )
        yield not_applicable(what, facts.budget, reason)
        return
    total, share = Interval.of(facts.total_memory), Interval.of(facts.memory_utilization)
    yield compared(what, facts.budget, total * share)


def _repeated(facts: LogFacts) -> Iterator[Check]:
    """A figure that a rank prints in two sentences is the same within both roundings."""
    first: dict[tuple[str, str], Stated] = {}
    for reading in facts.readings:
        if isinstance(reading, Stated) and reading.name in _REPEATED:
            before = first.setdefault((reading.rank, reading.name), reading)
            # The same sentence again is another process, where the log does not tell them apart.
            if _wording(before) != _wording(reading):
                what = f"the {reading.name.replace('_', ' ')} of line {before.line_number}"
                yield compared(what, reading, Interval.of(before))


def _wording(stated: Stated) -> str:
    return re.sub(r"[\d.,:-]+", "", stated.text)


def _available(facts: LogFacts) -> Iterator[Check]:
    """What is left of the budget for KV, on each rank that states it."""
    for rank, of_rank in facts.by_rank.items():
        available = of_rank.get("available_kv")
        if isinstance(available, Stated):
            yield _available_on_rank(facts, available, rank)


def _available_on_rank(facts: LogFacts, available: Stated, rank: str) -> Check:
    if facts.consumed is not None:
        # Here the peak holds what was set aside for CUDA graphs.
        names = ["consumed", "activation_peak"]
    elif facts.torch_peak is not None:
        names = ["torch_peak", "non_torch"]
    else:
        names = ["weights", "activation_peak", "non_torch"]
    known = {name: facts.of_rank(name, rank) for name in names}
    budget = _budget_interval(facts)
    terms = [Interval.of(stated) for stated in known.values() if stated is not None]
    what = " - ".join(["total x utilization", *(name.replace("_", " ") for name in names)])
    if budget is None or len(terms) < len(names):
        reason = missing(total_x_utilization=budget, **known)
        return not_applicable(what, available, reason)
    for term in terms:
        budget -= term
    check = compared(what, available, budget)
    estimate = facts.cuda_graph_estimate
    if check.verdict == "disagrees" and estimate is not None and "consumed" not in names:
        # Versions differ in whether the estimate is taken off, and the log need not say.
        less = budget - Interval.of(estimate)
        return compared(f"{what} - CUDA graph estimate", available, less)
    return check


def _budget_interval(facts: LogFacts) -> Interval | None:
    if facts.budget is not None:
        return Interval.of(facts.budget)
    if facts.total_memory is None or facts.memory_utilization is None:
        return None
    return Interval.of(facts.total_memory) * Interval.of(facts.memory_utilization)


def _concurrency(facts: LogFacts, derived: str) -> Iterator[Check]:
    """Blocks, tokens and concurrency against each other."""
    blocks, tokens, length = facts.num_gpu_blocks, facts.num_tokens, facts.concurrency_at
    concurrency = facts.max_concurrency
    if blocks is not None and tokens is not None:
        pool = blocks.whole

        def size_in_tokens(block_size: int) -> Interval:
            return _printed_tokens(Interval.exactly(pool * block_size), facts, block_size)

        yield _blockwise(f"{pool:,} blocks x block size", tokens, size_in_tokens, facts, derived)
    if concurrency is None or length is None:
        return
    of_request = f"{length.whole:,} tokens of a request"
    if blocks is not None:
        held, longest = blocks.whole, length.whole

        def requests(block_size: int) -> Interval:
            # The last block of a request is counted whole, or not, by version.
            whole = Fraction(held, -(-longest // block_size))
            return Interval(whole, Fraction(held * block_size, longest))

        what = f"{held:,} blocks x block size / {of_request}"
        yield _blockwise(what, concurrency, requests, facts, derived)
    elif tokens is not None:
        printed, longest = tokens.whole, length.whole

        def requests_of_tokens(block_size: int) -> Interval:
            whole = -(-longest // block_size) * block_size
            return Interval(Fraction(printed, whole), Fraction(printed + 1, longest))

        what = f"{printed:,} tokens / {of_request}"
        yield _blockwise(what, concurrency, requests_of_tokens, facts, derived)


def _printed_tokens(pool: Interval, facts: LogFacts, block_size: int) -> Interval:
    """What is printed for a pool of so many tokens.

    Up to 0.10 that is the pool; later it is concurrency x length, cut, where the last block of a
    request of that length is counted whole.
    """
    length = facts.concurrency_at or facts.max_model_len
    if length is None:
        return pool
    whole = -(-length.whole // block_size) * block_size
    return Interval(pool.low * Fraction(length.whole, whole) - 1, pool.high)


def _blockwise(
    what: str,
    stated: Stated,
    computed: Callable[[int], Interval],
    facts: LogFacts,
    derived: str,
) -> Check:
    """A check that depends on the block size, which the log may not state."""
    if derived:
        return not_applicable(what, stated, derived)
    if facts.block_size is not None:
        reason = f"blocks of {facts.block_size.whole} tokens"
        return compared(what, stated, computed(facts.block_size.whole), reason)
    for block_size in _BLOCK_SIZES:
        reason = f"with blocks of {block_size} tokens, which the log does not state"
        check = compared(what, stated, computed(block_size), reason)
        if check.verdict == "agrees":
            return check
    reason = (
        f"with blocks of {_BLOCK_SIZES[0]} tokens; no usual size fits; sizes of models with window"
        " or state layers are derived"
    )
    return compared(what, stated, computed(_BLOCK_SIZES[0]), reason)


def _pool(facts: LogFacts, kv_bytes_per_token: int, derived: str) -> Iterator[Check]:
    """The memory for KV against the size that is printed."""
    available, size = facts.available_kv, facts.num_gpu_blocks or facts.num_tokens
    if size is None:
        return
    what = f"memory for KV / {kv_bytes_per_token:,} bytes per token"
    override, context_parallel = facts.num_gpu_blocks_override, facts.decode_context_parallel_size
    if derived:
        yield not_applicable(what, size, derived)
    elif available is None:
        yield not_applicable(what, size, missing(memory_for_KV=available))
    elif override is not None:
        reason = f"line {override.line_number} sets the number of blocks"
        yield not_applicable(what, size, reason)
    elif context_parallel is not None and context_parallel.value > 1:
        yield not_applicable(what, size, "ranks of a decode context share each token")
    else:
        tokens = Interval.of(available) / Interval.exactly(kv_bytes_per_token)

        def in_blocks(block_size: int) -> Interval:
            whole = Interval(tokens.low - block_size, tokens.high)
            if size.unit == "blocks":
                return whole / Interval.exactly(block_size)
            return _printed_tokens(whole, facts, block_size)

        yield _on_all_ranks(_blockwise(what, size, in_blocks, facts, derived), facts)


def _on_all_ranks(check: Check, facts: LogFacts) -> Check:
    """A smaller pool does not contradict the log where a rank that it leaves out may have less."""
    sizes = (facts.tensor_parallel_size, facts.pipeline_parallel_size)
    num_ranks = prod(stated.whole for stated in sizes if stated is not None)
    num_stating = sum("available_kv" in of_rank for of_rank in facts.by_rank.values())
    assert check.stated is not None, "a check of blocks has two sides"
    assert check.computed is not None, "a check of blocks has two sides"
    smaller = check.stated.high < check.computed.low
    if check.verdict == "disagrees" and smaller and num_stating < num_ranks:
        reason = f"{num_stating} of {num_ranks} ranks state their memory; another may have less"
        return replace(check, verdict="agrees", relation="<=", reason=reason)
    return check


def _refusal(facts: LogFacts, kv_bytes_per_token: int, derived: str) -> Iterator[Check]:
    """What vLLM says when one request of the longest length does not fit."""
    of_token = f"{kv_bytes_per_token:,} bytes per token"
    per_token = Interval.exactly(kv_bytes_per_token)
    needed, length = facts.needed_kv, facts.max_model_len
    if needed is not None and length is not None:
        longest = length.whole

        def need(block_size: int) -> Interval:
            return Interval.exactly(-(-longest // block_size) * block_size) * per_token

        yield _blockwise(f"{longest:,} tokens x {of_token}", needed, need, facts, derived)
    estimated, there = facts.estimated_max_model_len, facts.checked_kv
    if estimated is not None and there is not None:
        tokens = Interval.of(there) / per_token

        def longest_that_fits(block_size: int) -> Interval:
            return Interval(tokens.low - block_size, tokens.high)

        what = f"memory for KV / {of_token}"
        yield _blockwise(what, estimated, longest_that_fits, facts, derived)
