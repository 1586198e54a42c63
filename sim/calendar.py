"""When running sequences need attention: the steps at which they grow and at which they finish."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence as Seq

from .sequence import NEVER, Sequence

FAR = 1 << 62  # a step that is never reached


class GrowthCalendar:
    """Decoding sequences in buckets by the step at which their room is used up, each in order of admission.

    All of a bucket grow by the same number of tokens, so the whole list moves on to its next step: a growth costs
    no rescheduling. The last growth of a sequence usually grants a tail that it will never fill; such slots are kept
    by the step in which they come to be, which spares looking at every sequence.
    """

    def __init__(self) -> None:
        self.steps: list[int] = []  # of the buckets, sorted
        self._buckets: dict[int, list[Sequence]] = {}  # a bucket may have been left by everybody
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
            insort(self.steps, first_growth)
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

    def pop(self) -> tuple[list[Sequence], int]:
        """The earliest bucket, which is the caller's until `put_back`, and its step."""
        step = self.steps.pop(0)
        return self._buckets.pop(step), step

    def pop_tail(self, step: int) -> int:
        """Slots granted in `step` that nobody will ever fill."""
        return self._tails.pop(step, 0)

    def put_back(self, step: int, bucket: list[Sequence]) -> None:
        """These grow again in `step`."""
        others = self._buckets.get(step)
        if others is None:
            insort(self.steps, step)
        else:
            bucket += others
            bucket.sort(key=lambda seq: seq.serial)
            for seq in others:
                seq.due = bucket
        self._buckets[step] = bucket

    def next_step(self) -> int:
        """The next step in which somebody may grow; far away if nobody will."""
        return self.steps[0] if self.steps else FAR

    def take_ahead(
        self, step: int, starts_ns: Seq[int], growth_tokens: int
    ) -> tuple[list[Sequence], int, int, int]:
        """Move on everybody who grows in the steps from `step` on that start at `starts_ns`.

        These are at most `growth_tokens` steps, so that nobody grows twice. Returns who grows, in order; the sum of the
        times at which they do; the tail slots that come to be; and these times the times at which they do.
        """
        steps, buckets, tails = self.steps, self._buckets, self._tails
        growers: list[Sequence] = []
        growth_moment = num_tail = tail_moment = 0
        num_due = bisect_left(steps, step + len(starts_ns))
        due_steps = steps[:num_due]
        del steps[:num_due]
        for due in due_steps:
            bucket = buckets.pop(due)
            if bucket:
                start_ns = starts_ns[due - step]
                growers += bucket
                growth_moment += len(bucket) * start_ns
                again = due + growth_tokens
                if again in buckets or (steps and again < steps[-1]):
                    self.put_back(again, bucket)
                else:
                    buckets[again] = bucket
                    steps.append(again)
                if due in tails:
                    tail = tails.pop(due)
                    num_tail += tail
                    tail_moment += tail * start_ns
        return growers, growth_moment, num_tail, tail_moment

    def steps_within(self, step: int, num_steps: int, num_units: int) -> int:
        """The most steps from `step` on, up to `num_steps`, such that at most `num_units` sequences grow behind it."""
        for due in self.steps:
            if due >= step + num_steps:
                break
            num_units -= len(self._buckets[due])
            if num_units < 0:
                return due - step
        return num_steps


class FinishCalendar:
    """Decoding sequences by the step that generates their last token, each in order of admission."""

    def __init__(self) -> None:
        self.steps: list[int] = []  # sorted
        self.by_step: dict[int, list[Sequence]] = {}

    def add(self, seq: Sequence, step: int) -> None:
        seq.finish_step = step
        if step in self.by_step:
            self.by_step[step].append(seq)
        else:
            self.by_step[step] = [seq]
            insort(self.steps, step)

    def remove(self, seq: Sequence) -> None:
        """The sequence has been preempted."""
        others = self.by_step[seq.finish_step]
        others.remove(seq)
        if not others:
            del self.by_step[seq.finish_step]
            del self.steps[bisect_left(self.steps, seq.finish_step)]
        seq.finish_step = NEVER

    def pop(self) -> list[Sequence]:
        """Everybody who finishes in the earliest step."""
        return self.by_step.pop(self.steps.pop(0))

    def next_step(self) -> int:
        """The next step in which somebody finishes; far away if nobody decodes."""
        return self.steps[0] if self.steps else FAR
