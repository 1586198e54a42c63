"""One run of slots per sequence, grown in place or moved: the KV cache as one tensor per request."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence as Seq
from typing import ClassVar

from ..sequence import Sequence
from .base import Allocator
from .policy import PolicySettings


class Contiguous(Allocator):
    """One run per request: grows in place, else moves, else compacts (if on), else the latest is preempted."""

    options: ClassVar[frozenset[str]] = frozenset({"growth_tokens", "fit", "compaction"})

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self.growth_tokens = self.growth_slots = settings.growth_tokens
        self._best_fit = settings.fit == "best"
        self._compaction = settings.compaction
        self._free_firsts = [0]  # sorted by address
        self._free_lengths = {0: self.num_slots}  # first slot -> number of slots, maximal runs
        self._holders: dict[int, Sequence] = {}  # first slot -> who holds the run there
        self._sources: list[tuple[int, int, Sequence]] = []  # runs that are being copied away from

    def largest_need(self, num_prompt_tokens: int, num_output_tokens: int, max_tokens: int) -> int:
        # Growth starts from wherever a preemption left the sequence, so its last step may overshoot E by all but one.
        overshoot = self.growth_slots - 1 if num_output_tokens > 1 else 0
        return num_prompt_tokens + num_output_tokens - 1 + overshoot

    def fits(self, seq: Sequence, num_tokens: int, others_running: bool) -> bool:
        return self._find(seq.known) is not None

    def grant(self, seq: Sequence, num_tokens: int) -> None:
        first = self._find(seq.known)
        assert first is not None, f"request {seq.row} was granted {seq.known} slots that do not fit"
        self._place(seq, first, seq.known, "grant")

    def grow(self, seqs: Seq[Sequence]) -> int:
        for num_served, seq in enumerate(seqs):
            if not self._grow_one(seq):
                return num_served
        return len(seqs)

    def _grow_one(self, seq: Sequence) -> bool:
        """The four ways of the policy, in their order; False leaves everything as it was."""
        first, more = seq.blocks[0], self.growth_slots
        behind = first + seq.granted_slots
        if self._free_lengths.get(behind, 0) >= more:
            self._cut(behind, more)
            self._hold(seq, first, seq.granted_slots + more)
            self.record("extend", seq, behind, more)
            return True
        target = self._find(seq.granted_slots + more)
        if target is not None:
            del self._holders[first]
            self._sources.append((first, seq.granted_slots, seq))
            self.pending_slots += seq.granted_slots
            self.moved_slots += seq.granted_slots
            self._place(seq, target, seq.granted_slots + more, "move")
            return True
        if self._compaction and self.num_free_slots() + self.pending_slots >= more:
            self._compact(seq, more)
            return True
        return False

    def _compact(self, grower: Sequence, more: int) -> None:
        """Slide all runs together from slot 0, in address order, leaving `more` slots behind the grower's.

        Copies are carried out in the order they are logged, so a source that an earlier move of this step has left
        is dead by then and is packed over. Runs sliding down go first to last, runs pushed up go last to first.
        """
        self._sources.clear()
        self.pending_slots = 0
        ups: list[tuple[Sequence, int]] = []
        moves: list[tuple[Sequence, int]] = []
        at = 0
        for first in sorted(self._holders):
            seq = self._holders[first]
            if at > first:
                ups.append((seq, at))
            else:
                moves += reversed(ups)
                ups.clear()
                if at < first:
                    moves.append((seq, at))
            at += seq.granted_slots + (more if seq is grower else 0)
        moves += reversed(ups)
        for seq, target in moves:
            self.moved_slots += seq.granted_slots
            seq.blocks = [target]
            self.record("move", seq, target, seq.granted_slots)
        self._holders = {seq.blocks[0]: seq for seq in self._holders.values()}
        self._hold(grower, grower.blocks[0], grower.granted_slots + more)
        self.record("extend", grower, sum(self.runs(grower)[-1]) - more, more)
        self._free_firsts, self._free_lengths = [], {}
        self._add_free(at, self.num_slots - at)

    def free(self, seq: Sequence) -> None:
        first = seq.blocks.pop()
        del self._holders[first]
        self._add_free(first, seq.granted_slots)
        self.record("free", seq, first, seq.granted_slots)

    def end_step(self) -> None:
        for first, num, seq in self._sources:
            self._add_free(first, num)
            self.record("vacate", seq, first, num)
        self._sources.clear()
        super().end_step()

    def _find(self, num_slots: int) -> int | None:
        """First slot of the lowest free run that is long enough, or of the shortest such run under best fit."""
        lengths = self._free_lengths
        if self._best_fit:
            fitting = (
                (lengths[first], first)
                for first in self._free_firsts
                if lengths[first] >= num_slots
            )
            return min(fitting, default=(0, None))[1]
        return next((first for first in self._free_firsts if lengths[first] >= num_slots), None)

    def _place(self, seq: Sequence, first: int, num_slots: int, action: str) -> None:
        self._cut(first, num_slots)
        self._hold(seq, first, num_slots)
        self.record(action, seq, first, num_slots)

    def _hold(self, seq: Sequence, first: int, num_slots: int) -> None:
        self._holders[first] = seq
        seq.blocks = [first]
        seq.room = seq.asked_slots = seq.granted_slots = num_slots

    def _cut(self, first: int, num_slots: int) -> None:
        """Take the first `num_slots` slots of the free run at `first`."""
        rest = self._free_lengths.pop(first) - num_slots
        at = bisect_left(self._free_firsts, first)
        if rest:
            self._free_firsts[at] = first + num_slots
            self._free_lengths[first + num_slots] = rest
        else:
            self._free_firsts.pop(at)

    def _add_free(self, first: int, num_slots: int) -> None:
        """Put a run on the free list, joined with its neighbours."""
        if num_slots == 0:
            return
        at = bisect_left(self._free_firsts, first)
        if at < len(self._free_firsts) and self._free_firsts[at] == first + num_slots:
            num_slots += self._free_lengths.pop(self._free_firsts.pop(at))
        if (
            at
            and self._free_firsts[at - 1] + self._free_lengths[self._free_firsts[at - 1]] == first
        ):
            first = self._free_firsts.pop(at - 1)
            num_slots += self._free_lengths.pop(first)
        insort(self._free_firsts, first)
        self._free_lengths[first] = num_slots

    def num_free_slots(self) -> int:
        return sum(self._free_lengths.values())

    def unusable_slots(self, seq: Sequence, num_tokens: int) -> int:
        return sum(num for num in self._free_lengths.values() if num < seq.known)

    def free_runs(self) -> list[tuple[int, int]]:
        return [(first, self._free_lengths[first]) for first in self._free_firsts]

    def runs(self, seq: Sequence) -> list[tuple[int, int]]:
        moving = [(first, num) for first, num, mover in self._sources if mover is seq]
        return [*moving, *((first, seq.granted_slots) for first in seq.blocks)]
