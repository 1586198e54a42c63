"""Executes plans by asking a cost model how long they last."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Seq
from itertools import accumulate
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
        start_ns = plan.start_ns
        if plan.chunks or plan.moved_slots or plan.num_prefill_tokens:
            return (start_ns + self._step_ns(plan.totals),)
        num_seqs, context = plan.num_decode_tokens, plan.decode_context_slots
        base = slope = 0
        for constant, per_token, per_slot in self._decode_terms:
            term = constant + per_token * num_seqs + per_slot * context
            if term > base:
                base, slope = term, per_slot * num_seqs
        first_ns = base >> SHIFT or 1
        num_steps = plan.max_steps
        if num_steps > 1:
            # No later step is shorter than the first, so this many reach the deadline.
            enough = (plan.deadline_ns - start_ns - 1) // first_ns + 1
            if enough < num_steps:
                num_steps = enough
        if num_steps <= 1:
            return (start_ns + first_ns,)
        last = num_steps - 1
        for constant, per_token, per_slot in self._decode_terms:
            at_last = constant + per_token * num_seqs + per_slot * (context + num_seqs * last)
            if at_last > base + slope * last:
                durations = self._crossing(num_seqs, context, num_steps)
                break
        else:  # the term that is on top at both ends is on top in between
            if slope and base >> SHIFT:
                scaled = range(base, base + slope * num_steps, slope)
                durations = [value >> SHIFT for value in scaled]
            else:
                durations = [first_ns] * num_steps if not slope else self._crossing(num_seqs, context, num_steps)
        ends_ns = list(accumulate(durations, initial=start_ns))
        del ends_ns[0]
        if ends_ns[-1] > plan.deadline_ns:
            del ends_ns[bisect_left(ends_ns, plan.deadline_ns) + 1 :]
        return ends_ns

    def _crossing(self, num_seqs: int, context: int, num_steps: int) -> list[int]:
        """Durations where the longest term changes on the way, or where they are under a nanosecond."""
        return [
            max(constant + per_token * num_seqs + per_slot * slots for constant, per_token, per_slot in self._decode_terms)
            >> SHIFT
            or 1
            for slots in range(context, context + num_seqs * num_steps, num_seqs)
        ]
