"""When running sequences need attention: the steps at which they grow and at which they finish."""

from __future__ import annotations

from collections.abc import Sequence as Seq
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
        self.buckets: dict[
            int, list[Sequence]
        ] = {}  # by step; a bucket may have been left by everybody
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
        bucket = self.buckets.get(first_growth)
        if bucket is None:
            bucket = self.buckets[first_growth] = []
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

    def pop_tail(self, step: int) -> int:
        return self._tails.pop(step, 0)

    def put_back(self, step: int, bucket: list[Sequence]) -> None:
        """These grow again in `step`."""
        others = self.buckets.get(step)
        if others:
            bucket += others
            bucket.sort(key=lambda seq: seq.serial)
            for seq in others:
                seq.due = bucket
        self.buckets[step] = bucket

    def next_step(self) -> int:
        """The next step in which somebody grows; far away if nobody will."""
        return min((step for step, bucket in self.buckets.items() if bucket), default=1 << 62)

    def take_ahead(
        self, step: int, starts_ns: Seq[int], growth_tokens: int
    ) -> tuple[list[Sequence], int, int, int]:
        """Move on everybody who grows in the steps from `step` on that start at `starts_ns`.

        These are at most `growth_tokens` steps, so that nobody grows twice. Returns who grows, in order; the sum of the
        times at which they do; the tail slots that come to be; and these times the times at which they do.
        """
        buckets, tails = self.buckets, self._tails
        growers: list[Sequence] = []
        growth_moment = num_tail = tail_moment = 0
        for start_ns in starts_ns:
            if step in buckets:
                bucket = buckets.pop(step)
                if bucket:
                    growers += bucket
                    growth_moment += len(bucket) * start_ns
                    buckets[step + growth_tokens] = bucket
                    if step in tails:
                        tail = tails.pop(step)
                        num_tail += tail
                        tail_moment += tail * start_ns
            step += 1
        return growers, growth_moment, num_tail, tail_moment

    def steps_within(self, step: int, num_steps: int, num_units: int) -> int:
        """The largest number of steps from `step` on, at most `num_steps`, in which at most `num_units` grow after the first."""
        for i in range(1, num_steps):
            num_units -= len(self.buckets.get(step + i, ()))
            if num_units < 0:
                return i
        return num_steps


class FinishCalendar:
    """Decoding sequences by the step that generates their last token, each in order of admission."""

    def __init__(self) -> None:
        self.by_step: dict[int, list[Sequence]] = {}
        self._steps: list[int] = []  # a heap; steps that everybody has left stay until they come up

    def add(self, seq: Sequence, step: int) -> None:
        seq.finish_step = step
        if step in self.by_step:
            self.by_step[step].append(seq)
        else:
            self.by_step[step] = [seq]
            heappush(self._steps, step)

    def remove(self, seq: Sequence) -> None:
        """The sequence has been preempted."""
        others = self.by_step[seq.finish_step]
        others.remove(seq)
        if not others:
            del self.by_step[seq.finish_step]
        seq.finish_step = NEVER

    def pop(self, step: int) -> Seq[Sequence]:
        """Everybody who finishes in `step`."""
        return self.by_step.pop(step, _NOBODY)

    def next_step(self) -> int:
        """The next step in which somebody finishes; somebody is decoding."""
        while self._steps[0] not in self.by_step:
            heappop(self._steps)
        return self._steps[0]
