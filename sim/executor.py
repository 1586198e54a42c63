"""Executes plans by asking a cost model how long they last."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Seq
from itertools import accumulate, islice
from typing import Protocol

from .cost import SHIFT, TOTALS, CostModel
from .plan import Plan

_DECODE_TOKENS = TOTALS.index("num_decode_tokens")
_DECODE_CONTEXT = TOTALS.index("decode_context_slots")
_HALF = 1 << SHIFT - 1


class Executor(Protocol):
    """Turns a plan into the times at which its steps end."""

    def execute(self, plan: Plan) -> Seq[int]:
        """End times (ns) of the steps that were run: at least one, at most `max_steps`.

        Stops at the first end at or after `deadline_ns`.
        """
        ...


class CostExecutor:
    """Durations from a cost model. Further steps of a plan differ by their context alone, so each term is linear in them."""

    def __init__(self, cost: CostModel) -> None:
        self._step_ns = cost.step_ns
        # (constant with the half that rounds, per decode token, per context slot) in 2**-SHIFT ns
        self._decode_terms = [
            (term.constant + _HALF, term.coefficients[_DECODE_TOKENS], term.coefficients[_DECODE_CONTEXT])
            for term in cost.terms
        ]

    def execute(self, plan: Plan) -> Seq[int]:
        if plan.max_steps == 1:
            return (plan.start_ns + self._step_ns(plan.totals),)
        num_seqs, context = plan.num_decode_tokens, plan.decode_context_slots
        lines = [
            (constant + per_token * num_seqs + per_slot * context, per_slot * num_seqs)
            for constant, per_token, per_slot in self._decode_terms
        ]
        num_steps = plan.max_steps
        first_ns = max(1, max(lines)[0] >> SHIFT)
        if plan.deadline_ns is not None:
            # No later step is shorter than the first, so this many reach the deadline.
            num_steps = min(num_steps, max(0, plan.deadline_ns - plan.start_ns - 1) // first_ns + 1)
        ends_ns = self._ends(plan.start_ns, lines, num_steps)
        if plan.deadline_ns is not None and ends_ns[-1] >= plan.deadline_ns:
            del ends_ns[bisect_left(ends_ns, plan.deadline_ns) + 1 :]
        return ends_ns

    @staticmethod
    def _ends(start_ns: int, lines: list[tuple[int, int]], num_steps: int) -> list[int]:
        """End times of steps that last max over lines of (base + slope x i) >> SHIFT ns, at least 1."""
        last = num_steps - 1
        base, slope = max(lines)
        # The line that is on top at both ends is on top in between.
        if all(other + more * last <= base + slope * last for other, more in lines) and base >> SHIFT:
            if slope:
                scaled = range(base, base + slope * num_steps, slope)
                durations = [value >> SHIFT for value in scaled]
            else:
                durations = [base >> SHIFT] * num_steps
        else:
            durations = [
                max(1, max(base + slope * i for base, slope in lines) >> SHIFT) for i in range(num_steps)
            ]
        return list(islice(accumulate(durations, initial=start_ns), 1, None))
