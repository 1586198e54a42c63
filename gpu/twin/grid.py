"""The steps whose durations calibration measures."""

from dataclasses import dataclass

import numpy as np

from kvtwin.sim.plan import Plan

from .executor import totals_of

# Contexts of a batch are as uneven as those of a trace: log-normal, with this standard deviation.
CONTEXT_SIGMA = 0.8
_PREFILL_PREFIXES = (0, 0.25, 1)  # of the longest context
_MIXED_BATCHES = (0.1, 0.4, 1)  # of the largest batch


@dataclass(frozen=True)
class GridStep:
    """`chunks`: parts of prompts as (tokens before, tokens computed). `contexts`: of decodes, with the new token."""

    chunks: tuple[tuple[int, int], ...]
    contexts: tuple[int, ...]
    moved_slots: int = 0

    @property
    def num_slots(self) -> int:
        """Slots of the pool that its sequences hold, and those that are moved and moved to."""
        return (
            sum(first + num for first, num in self.chunks)
            + sum(self.contexts)
            + 2 * self.moved_slots
        )

    def totals(self) -> tuple[int, ...]:
        """As a plan counts them, in the order of `kvtwin.sim.cost.TOTALS`."""
        plan = Plan(0, len(self.contexts), sum(self.contexts))
        plan.num_prefill_tokens = sum(num for _, num in self.chunks)
        plan.prefill_pairs = sum(num * first + num * (num + 1) // 2 for first, num in self.chunks)
        plan.prefill_context_slots = sum(first + num for first, num in self.chunks)
        plan.moved_slots = self.moved_slots
        return totals_of(plan)


def calibration_grid(
    max_num_seqs: int, max_context: int, max_num_batched_tokens: int, max_slots: int, seed: int = 0
) -> list[GridStep]:
    """Decodes alone, prompts alone, both, and moves, within these limits, in random order.

    So what a time limit cuts off is a random part of it. Steps above `max_slots` are left out.
    """
    generator = np.random.default_rng(seed)

    def contexts(num: int, mean: float) -> tuple[int, ...]:
        drawn = generator.lognormal(np.log(mean) - CONTEXT_SIGMA**2 / 2, CONTEXT_SIGMA, num)
        return tuple(drawn.round().astype(int).clip(1, max_context).tolist())

    batches = _powers(1, max_num_seqs)
    means = [max_context * share for share in (1 / 32, 1 / 8, 1 / 4, 1 / 2)]
    steps = [GridStep((), contexts(num, max(mean, 1))) for num in batches for mean in means]
    lengths = [num for num in _powers(8, max_num_batched_tokens) if num <= max_context]
    for num in lengths:
        prefixes = {round(share * (max_context - num)) for share in _PREFILL_PREFIXES}
        steps += [GridStep(((prefix, num),), ()) for prefix in sorted(prefixes)]
        steps += [
            GridStep(((0, num),) * prompts, ())
            for prompts in (2, 5)
            if prompts * num <= max_num_batched_tokens
        ]
    for share in _MIXED_BATCHES:
        num_seqs = max(1, round(share * max_num_seqs))
        for num in lengths[1::2]:
            room = (max_num_batched_tokens - num_seqs) // num
            if room < 1:
                continue
            prompts = min(int(generator.integers(1, 4)), room)
            mean = float(generator.choice(means))
            steps.append(GridStep(((0, num),) * prompts, contexts(num_seqs, max(mean, 1))))
    moved = _powers(16, max_slots // 4)
    steps += [
        GridStep((), contexts(batches[len(batches) // 2], means[1] + 1), num) for num in moved
    ]
    chosen = [step for step in steps if step.num_slots <= max_slots]
    return [chosen[place] for place in generator.permutation(len(chosen))]


def _powers(first: int, last: int) -> list[int]:
    """first, 2 first, 4 first, ... up to `last`, and `last`."""
    values = [last]
    while first < last:
        values.append(first)
        first *= 2
    return sorted(values)
