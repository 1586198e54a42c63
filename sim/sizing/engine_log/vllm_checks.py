"""What must hold between the figures of vLLM's start-up lines, memory first.

Source: `v1/worker/gpu_worker.py` (`determine_available_memory`) of 0.32.0; V0's `worker/worker.py`.
"""

import re
from collections.abc import Iterator

from .check import Check, compared, missing, not_applicable
from .facts import LogFacts, Stated, StatedText
from .interval import Interval
from .vllm_pool_checks import pool_checks

# Printed more than once in a start, with different rounding.
_REPEATED = ("weights", "available_kv", "cuda_graphs", "total_memory")


def vllm_checks(facts: LogFacts, kv_bytes_per_token: int | None, derived: str) -> list[Check]:
    derived = derived or _derived(facts)
    return [
        *_budget(facts),
        *_repeated(facts),
        *_available(facts),
        *pool_checks(facts, kv_bytes_per_token, derived),
    ]


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
