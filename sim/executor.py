"""Executes plans by asking a cost model how long they last."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import Protocol

import numpy as np

from .cost import SHIFT, TOTALS, CostModel
from .plan import Plan

_DECODE_TOKENS = TOTALS.index("num_decode_tokens")
_DECODE_CONTEXT = TOTALS.index("decode_context_slots")
_HALF = 1 << SHIFT - 1
_MANY = 40  # steps, from which on arrays are faster
_INT64 = 1 << 62  # arrays hold what is below


class Executor(Protocol):
    """Turns a plan into the times at which its steps end."""

    def execute(self, plan: Plan) -> Seq[int]:
        """End times (ns) of the steps that were run: at least one, at most as many as the plan has.

        Stops at the first end at or after `deadline_ns`.
        """
        ...


def _many_ends_ns(start_ns: int, base: int, slope: int, num_steps: int) -> list[int]:
    """Ends of steps from `start_ns` on that last base, base + slope, ... (2**-SHIFT ns, rounded down)."""
    ends = np.arange(base, base + slope * num_steps, slope)
    ends >>= SHIFT
    ends[0] += start_ns
    ends_ns: list[int] = ends.cumsum().tolist()
    return ends_ns


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
        # A longest term that also grows fastest with the context stays the longest.
        self._most_per_slot = max(per_slot for _, _, per_slot in self._decode_terms)

    def _first_ns(self, plan: Plan) -> int:
        num_tokens, num_pairs, num_reads = (
            plan.num_prefill_tokens,
            plan.prefill_pairs,
            plan.prefill_context_slots,
        )
        num_decodes, num_slots = plan.num_decode_tokens, plan.decode_context_slots
        moved_slots = plan.moved_slots
        longest = 0
        for constant, per_token, per_pair, per_read, per_decode, per_slot, per_move in self._terms:
            term = (
                constant
                + per_token * num_tokens
                + per_pair * num_pairs
                + per_read * num_reads
                + per_decode * num_decodes
                + per_slot * num_slots
            )
            if moved_slots:
                term += per_move * moved_slots
            if term > longest:
                longest = term
        return longest >> SHIFT or 1

    def execute(self, plan: Plan) -> Seq[int]:
        deadline_ns = plan.deadline_ns
        if plan.max_steps == 1:
            ends_ns = [plan.ready_ns + self._first_ns(plan)]
        else:
            ends_ns = []
            self._repeat(
                ends_ns,
                plan.start_ns,
                deadline_ns,
                plan.max_steps,
                plan.num_decode_tokens,
                plan.decode_context_slots,
            )
        if plan.more and ends_ns[-1] < deadline_ns:
            for num_steps, num_seqs, context in plan.more:
                self._repeat(ends_ns, ends_ns[-1], deadline_ns, num_steps, num_seqs, context)
                if ends_ns[-1] >= deadline_ns:
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
        base = longest_per_slot = 0
        for constant, per_token, per_slot in self._decode_terms:
            term = constant + per_token * num_seqs + per_slot * context
            if term > base:
                base = term
                longest_per_slot = per_slot
        first_ns = base >> SHIFT or 1
        # No later step is shorter than the first, so this many reach the deadline.
        most_steps = (deadline_ns - start_ns - 1) // first_ns + 1
        if num_steps > most_steps:
            num_steps = most_steps
        if num_steps <= 1:
            ends_ns.append(start_ns + first_ns)
            return
        num_before, slope = len(ends_ns), longest_per_slot * num_seqs
        if base < 1 << SHIFT or self._is_overtaken(num_steps, num_seqs, context, base, slope):
            durations = self._crossing(num_seqs, context, num_steps)
            ends_ns += accumulate(durations[1:], initial=start_ns + first_ns)
        elif not slope:
            end_ns = start_ns + first_ns
            ends_ns += range(end_ns, end_ns + first_ns * num_steps, first_ns)
        elif num_steps < _MANY or start_ns + num_steps * (base + slope * (num_steps - 1)) >= _INT64:
            end_ns = start_ns
            for duration in range(base, base + slope * num_steps, slope):
                end_ns += duration >> SHIFT
                ends_ns.append(end_ns)
        else:
            ends_ns += _many_ends_ns(start_ns, base, slope, num_steps)
        if ends_ns[-1] > deadline_ns:
            del ends_ns[bisect_left(ends_ns, deadline_ns, num_before) + 1 :]

    def _is_overtaken(
        self, num_steps: int, num_seqs: int, context: int, base: int, slope: int
    ) -> bool:
        """Whether another term becomes the longest on the way: not if this one is on top at both ends."""
        if slope == self._most_per_slot * num_seqs:
            return False
        at_last = base + slope * (num_steps - 1)
        context_at_last = context + num_seqs * (num_steps - 1)
        for constant, per_token, per_slot in self._decode_terms:
            if constant + per_token * num_seqs + per_slot * context_at_last > at_last:
                return True
        return False

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
