"""How far the steps behind a planned one can be foreseen, if the executor wants more than one.

A segment is (number of steps, decoding sequences in each, slots the decodes of the first one read).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq

from .calendar import FinishCalendar, GrowthCalendar
from .sequence import Sequence

Segment = tuple[int, int, int]
Chunks = Seq[tuple[Sequence, int]]


def up_to_next_finish(
    finishes: FinishCalendar,
    growths: GrowthCalendar,
    chunks: Chunks,
    step: int,
    num_seqs: int,
    context: int,
    num_units: int,
) -> tuple[Segment, ...]:
    """What follows from `step` on behind the last chunks of prompts, where whoever waits stays refused.

    `num_seqs` sequences with `context` committed tokens decode without those of the chunks. At most `num_units`
    growths fit. Ends early where the sequences of the chunks, which are in no calendar yet, could grow twice.
    """
    num_steps = finishes.next_step() - step + 1
    if num_steps > growths.growth_tokens:
        num_steps = growths.growth_tokens
    for seq, _ in chunks:
        num_left = seq.end - seq.known
        if num_left < num_steps:
            num_steps = num_left
        context += seq.known
    for seq, _ in chunks:
        if seq.room - seq.known < num_steps:
            num_units -= 1
    if num_steps <= 0 or num_units < 0:
        return ()
    num_steps = growths.steps_within(step, num_steps, num_units)
    num_seqs += len(chunks)
    return ((num_steps, num_seqs, context + num_seqs),) if num_steps else ()


def up_to(
    finishes: FinishCalendar,
    chunks: Chunks,
    step: int,
    num_seqs: int,
    context: int,
    end_step: int,
    awaited: Collection[int],
) -> Iterator[Segment]:
    """What follows from `step` on behind finishes and complete prefills, where nobody waits and no growth can fail.

    `num_seqs` sequences with `context` committed tokens decode before `step`, without those of the chunks, with those
    that finish before it. Ends before `end_step`, and with the end of a request whose row is `awaited`. The executor
    takes as many segments as it needs.
    """
    by_step, due_steps = finishes.by_step, finishes.steps
    joined: dict[int, list[Sequence]] = {}
    if chunks:
        due_steps = due_steps.copy()
        for seq, _ in chunks:
            if seq.end > seq.known:
                num_seqs += 1
                context += seq.known
                last_step = step + seq.end - seq.known - 1
                if last_step not in by_step and last_step not in joined:
                    insort(due_steps, last_step)
                joined.setdefault(last_step, []).append(seq)
            elif seq.row in awaited:
                return
    for last_step in due_steps:
        if last_step >= end_step:
            break
        if last_step >= step:
            yield last_step + 1 - step, num_seqs, context + num_seqs
            context += num_seqs * (last_step + 1 - step)
            step = last_step + 1
        is_awaited = False
        for seq in (*by_step.get(last_step, ()), *joined.get(last_step, ())):
            num_seqs -= 1
            context -= seq.end
            is_awaited |= seq.row in awaited
        if is_awaited:
            return
    if num_seqs and step < end_step:
        yield end_step - step, num_seqs, context + num_seqs
