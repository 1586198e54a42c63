"""Executes plans by asking a cost model how long they last."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from itertools import accumulate, repeat
from operator import rshift
from typing import Protocol

from .cost import SHIFT, TOTALS, CostModel
from .plan import Plan

_DECODE_TOKENS = TOTALS.index("num_decode_tokens")
_DECODE_CONTEXT = TOTALS.index("decode_context_slots")
_HALF = 1 << SHIFT - 1


class Executor(Protocol):
    """Turns a plan into the times at which its steps end."""

    def execute(self, plan: Plan) -> Seq[int]:
        """End times (ns) of the steps that were run: at least one, at most as many as the plan has.

        Stops at the first end at or after `deadline_ns`.
        """
        ...


class CostExecutor:
    """Durations from a cost model. Repeated steps differ by their context alone, so each term is linear in them."""

    def __init__(self, cost: CostModel) -> None:
        # In 2**-SHIFT ns; the constant has the half that rounds.
        self._terms = [(term.constant + _HALF, *term.coefficients) for term in cost.terms]
        self._decode_terms = [
            (
                term.constant + _HALF,
                term.coefficients[_DECODE_TOKENS],
                term.coefficients[_DECODE_CONTEXT],
            )
            for term in cost.terms
        ]

    def _first_ns(self, plan: Plan) -> int:
        longest = 0
        for constant, per_token, per_pair, per_read, per_decode, per_slot, per_move in self._terms:
            term = (
                constant
                + per_token * plan.num_prefill_tokens
                + per_pair * plan.prefill_pairs
                + per_read * plan.prefill_context_slots
                + per_decode * plan.num_decode_tokens
                + per_slot * plan.decode_context_slots
                + per_move * plan.moved_slots
            )
            if term > longest:
                longest = term
        return longest >> SHIFT or 1

    def execute(self, plan: Plan) -> Seq[int]:
        ends_ns: list[int]
        if plan.max_steps == 1:
            ends_ns = [plan.start_ns + self._first_ns(plan)]
        else:
            ends_ns = []
            self._repeat(
                ends_ns,
                plan.start_ns,
                plan.deadline_ns,
                plan.max_steps,
                plan.num_decode_tokens,
                plan.decode_context_slots,
            )
        if plan.more and ends_ns[-1] < plan.deadline_ns:
            for num_steps, num_seqs, context in plan.more:
                self._repeat(ends_ns, ends_ns[-1], plan.deadline_ns, num_steps, num_seqs, context)
                if ends_ns[-1] >= plan.deadline_ns:
                    break
        return ends_ns

    def _repeat(
        self,
        ends_ns: list[int],
        start_ns: int,
        deadline_ns: int,
        num_steps: int,
        num_seqs: int,
        context: int,
    ) -> None:
        """Append the ends of steps of the same decoding sequences, until one is at or after the deadline."""
        base = slope = 0
        for constant, per_token, per_slot in self._decode_terms:
            term = constant + per_token * num_seqs + per_slot * context
            if term > base:
                base, slope = term, per_slot * num_seqs
        first_ns = base >> SHIFT or 1
        # No later step is shorter than the first, so this many reach the deadline.
        num_steps = min(num_steps, (deadline_ns - start_ns - 1) // first_ns + 1)
        if num_steps <= 1:
            ends_ns.append(start_ns + first_ns)
            return
        at_last = base + slope * (num_steps - 1)
        context_at_last = context + num_seqs * (num_steps - 1)
        durations: Iterable[int]
        for constant, per_token, per_slot in self._decode_terms:
            if constant + per_token * num_seqs + per_slot * context_at_last > at_last:
                durations = self._crossing(num_seqs, context, num_steps)
                break
        else:  # the term that is on top at both ends is on top in between
            if not slope:
                durations = repeat(first_ns, num_steps)
            elif base >> SHIFT:
                durations = map(rshift, range(base, at_last + 1, slope), repeat(SHIFT))
            else:
                durations = self._crossing(num_seqs, context, num_steps)
        more_ns = list(accumulate(durations, initial=start_ns))
        del more_ns[0]
        if more_ns[-1] > deadline_ns:
            del more_ns[bisect_left(more_ns, deadline_ns) + 1 :]
        ends_ns += more_ns

    def _crossing(self, num_seqs: int, context: int, num_steps: int) -> list[int]:
        """Durations where the longest term changes on the way, or where they are under a nanosecond."""
        return [
            max(
                constant + per_token * num_seqs + per_slot * slots
                for constant, per_token, per_slot in self._decode_terms
            )
            >> SHIFT
            or 1
            for slots in range(context, context + num_seqs * num_steps, num_seqs)
        ]
