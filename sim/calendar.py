"""When running sequences need attention: the steps at which they grow and at which they finish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Seq
from heapq import heappop, heappush

from .sequence import NEVER, Sequence

_NOBODY: tuple[Sequence, ...] = ()


class GrowthCalendar:
    """Decoding sequences in buckets by the step at which their room is used up, each in order of admission.

    All of a bucket grow by the same number of tokens, so the whole list moves on to its next step: a growth costs
    no rescheduling. The last growth of a sequence usually grants a tail that it will never fill; `pop_tail` says how
    many such slots come to be in a step, which spares looking at every sequence.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, list[Sequence]] = {}
        self._tails: dict[int, int] = {}

    def add(self, seq: Sequence, step: int, growth_tokens: int, growth_slots: int) -> None:
        """A sequence with `seq.known` committed tokens decodes from `step` on, if it must grow before it finishes."""
        missing = seq.end - seq.room
        seq.tail = 0
        if missing <= 0:
            seq.due = None
            return
        first_growth = step + seq.room - seq.known
        num_growths = -(-missing // growth_tokens)
        if growth_slots:
            seq.tail = num_growths * growth_tokens - missing
            seq.tail_step = first_growth + (num_growths - 1) * growth_tokens
            if seq.tail:
                self._tails[seq.tail_step] = self._tails.get(seq.tail_step, 0) + seq.tail
        bucket = self._buckets.get(first_growth)
        if bucket is None:
            bucket = self._buckets[first_growth] = []
        bucket.append(seq)
        seq.due = bucket

    def remove(self, seq: Sequence, step: int) -> None:
        """A sequence stops before the growths of `step`."""
        if seq.due is None:
            return
        seq.due.remove(seq)
        seq.due = None
        if seq.tail and seq.tail_step >= step:
            self._tails[seq.tail_step] -= seq.tail

    def pop(self, step: int) -> list[Sequence] | None:
        """Everybody who grows in `step`; None if nobody does. The list is the caller's until `put_back`."""
        return self._buckets.pop(step, None) or None

    def pop_tail(self, step: int) -> int:
        return self._tails.pop(step, 0)

    def put_back(self, step: int, bucket: list[Sequence]) -> None:
        """These grow again in `step`."""
        others = self._buckets.get(step)
        if others:
            bucket += others
            bucket.sort(key=lambda seq: seq.serial)
            for seq in others:
                seq.due = bucket
        self._buckets[step] = bucket

    def next_step(self) -> int:
        """The next step in which somebody grows; far away if nobody will."""
        return min((step for step, bucket in self._buckets.items() if bucket), default=1 << 62)

    def steps_after(self, step: int, num_steps: int) -> Iterator[tuple[int, int]]:
        """(i, step + i) for each 0 < i < num_steps in which somebody grows."""
        buckets = self._buckets
        for i in range(1, num_steps):
            if step + i in buckets:
                if buckets[step + i]:
                    yield i, step + i
                else:
                    del buckets[step + i]

    def steps_within(self, step: int, num_steps: int, num_units: int) -> int:
        """The largest number of steps from `step` on, at most `num_steps`, in which at most `num_units` grow after the first."""
        for i, due in self.steps_after(step, num_steps):
            num_units -= len(self._buckets[due])
            if num_units < 0:
                return i
        return num_steps


class FinishCalendar:
    """Decoding sequences by the step that generates their last token, each in order of admission."""

    def __init__(self) -> None:
        self._by_step: dict[int, list[Sequence]] = {}
        self._steps: list[int] = []  # a heap; steps that everybody has left stay until they come up

    def add(self, seq: Sequence, step: int) -> None:
        seq.finish_step = step
        if step in self._by_step:
            self._by_step[step].append(seq)
        else:
            self._by_step[step] = [seq]
            heappush(self._steps, step)

    def remove(self, seq: Sequence) -> None:
        """The sequence has been preempted."""
        others = self._by_step[seq.finish_step]
        others.remove(seq)
        if not others:
            del self._by_step[seq.finish_step]
        seq.finish_step = NEVER

    def pop(self, step: int) -> Seq[Sequence]:
        """Everybody who finishes in `step`."""
        return self._by_step.pop(step, _NOBODY)

    def next_step(self) -> int:
        """The next step in which somebody finishes; somebody is decoding."""
        while self._steps[0] not in self._by_step:
            heappop(self._steps)
        return self._steps[0]
