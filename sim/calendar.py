"""When running sequences need attention: the steps at which they grow and at which they finish."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence as Seq
from heapq import heapify, heappop, heappush
from itertools import accumulate
from operator import attrgetter

from .sequence import NEVER, Sequence

FAR = 1 << 62  # a step that is never reached


_serial = attrgetter("serial")


class GrowthCalendar:
    """Decoding sequences by the step at which their room is used up.

    All grow by the same number of tokens, so a sequence grows at the steps that leave the same remainder, its phase,
    when divided by that number, until it stops. It stays in the bucket of its phase, in order of admission: a growth
    changes nothing here. How many grow in some steps is a sum over a slice.

    The last growth of a sequence usually grants a tail that it will never fill; such slots are kept by the step in
    which they come to be, which spares looking at every sequence.
    """

    def __init__(self, growth_tokens: int, growth_slots: int) -> None:
        self.growth_tokens = growth_tokens
        self._has_tails = growth_slots > 0
        self._buckets: list[list[Sequence]] = [[] for _ in range(growth_tokens)]
        self._nums = [0] * growth_tokens  # of sequences in the buckets
        self._phases: list[int] = []  # of the buckets that are not empty, sorted
        # Those whose first growth is still more than a round of phases away: (its step, serial, sequence), a heap.
        self._later: list[tuple[int, int, Sequence]] = []
        self._tails: dict[int, int] = {}

    def add(self, seq: Sequence, step: int) -> None:
        """A sequence with `seq.known` committed tokens decodes from `step` on, if it must grow before it finishes."""
        missing = seq.end - seq.room
        if missing <= 0:
            seq.phase = NEVER
            return
        growth_tokens = self.growth_tokens
        first_growth = step + seq.room - seq.known
        tail = seq.tail = -missing % growth_tokens if self._has_tails else 0
        if tail:
            tail_step = seq.tail_step = first_growth + missing + tail - growth_tokens
            self._tails[tail_step] = self._tails.get(tail_step, 0) + tail
        seq.phase = first_growth % growth_tokens
        if first_growth >= step + growth_tokens:
            heappush(self._later, (first_growth, seq.serial, seq))
            return
        self._insert(seq)

    def _insert(self, seq: Sequence) -> None:
        phase = seq.phase
        bucket = self._buckets[phase]
        self._nums[phase] += 1
        if not bucket:
            insort(self._phases, phase)
            bucket.append(seq)
        elif bucket[-1].serial < seq.serial:
            bucket.append(seq)
        else:
            insort(bucket, seq, key=_serial)

    def _enter(self, step: int) -> None:
        """From `step` on, the next time that the phase of these comes round is their first growth."""
        later, round_end = self._later, step + self.growth_tokens
        while later and later[0][0] < round_end:
            self._insert(heappop(later)[2])

    def remove(self, seq: Sequence, step: int) -> None:
        """A sequence stops before the growths of `step`."""
        if seq.phase == NEVER:
            return
        bucket = self._buckets[seq.phase]
        try:
            bucket.remove(seq)
            self._nums[seq.phase] -= 1
            if not bucket:
                del self._phases[bisect_left(self._phases, seq.phase)]
        except ValueError:
            self._later = [entry for entry in self._later if entry[2] is not seq]
            heapify(self._later)
        if seq.tail and seq.tail_step >= step:
            self._tails[seq.tail_step] -= seq.tail
            if not self._tails[seq.tail_step]:
                del self._tails[seq.tail_step]

    def due(self, step: int) -> list[Sequence]:
        """Who grows in `step`, in order of admission. It shrinks when one of them is removed."""
        if self._later:
            self._enter(step)
        return self._buckets[step % self.growth_tokens]

    def pop_tail(self, step: int) -> int:
        """Slots granted in `step` that nobody will ever fill."""
        return self._tails.pop(step, 0)

    def ahead(
        self, step: int, times_ns: Seq[int], first: int
    ) -> tuple[list[Sequence], int, int, int]:
        """Who grows, in order, in the steps from `step` on that lie between `times_ns`, without those before `first`.

        Also the sum of the times at which they do, the tail slots that come to be, and these times their times.
        """
        tails, buckets, phases = self._tails, self._buckets, self._phases
        growers: list[Sequence] = []
        growth_moment = num_tail = tail_moment = 0
        at, num_steps = first, len(times_ns) - 1
        while at < num_steps:  # a round of phases, or what the steps cover of it
            if self._later:
                self._enter(step + at)
            phase = (step + at) % self.growth_tokens
            round_start = at - phase
            low = bisect_left(phases, phase)
            for due in phases[low : bisect_left(phases, num_steps - round_start, low)]:
                at = round_start + due
                bucket, start_ns = buckets[due], times_ns[at]
                growers += bucket
                growth_moment += len(bucket) * start_ns
                if step + at in tails:
                    tail = tails.pop(step + at)
                    num_tail += tail
                    tail_moment += tail * start_ns
            at = round_start + self.growth_tokens
        return growers, growth_moment, num_tail, tail_moment

    def next_step(self, step: int) -> int:
        """The first step from `step` on in which somebody grows; far away if nobody will."""
        if self._later:
            self._enter(step)
        phases, phase = self._phases, step % self.growth_tokens
        if not phases:
            return self._later[0][0] if self._later else FAR
        at = bisect_left(phases, phase)
        if at < len(phases):
            return step + phases[at] - phase
        return step + phases[0] - phase + self.growth_tokens

    def steps_within(self, step: int, num_steps: int, num_units: int) -> int:
        """The most steps from `step` on, up to `num_steps`, in which at most `num_units` growths take place.

        Where some grow for the first time behind the coming round of phases, looks at no more than that.
        """
        growth_tokens = self.growth_tokens
        if self._later:
            self._enter(step)
            if num_steps > growth_tokens:
                num_steps = growth_tokens
        at = 0
        while at < num_steps:  # a round of phases, or what the steps cover of it
            phase = (step + at) % growth_tokens
            nums = self._nums[phase : phase + num_steps - at]
            num_growths = sum(nums)
            if num_growths > num_units:
                return at + bisect_right(list(accumulate(nums)), num_units)
            num_units -= num_growths
            at += len(nums)
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
