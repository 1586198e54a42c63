"""The contract of an allocator: a policy whose slots belong to one sequence at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import ClassVar

import numpy as np

from ..sequence import Sequence
from .policy import Policy, PolicySettings


class Allocator(Policy):
    """Hands out slots to the sequences of `Engine`, each to one sequence at a time. It never sees the queue.

    A refusal returns False (or a short count) and changes nothing. A policy declares how the scheduler has to treat it
    in the class attributes. One that `reuses_prefixes` lets a sequence start with what `num_hit_tokens` finds.
    """

    chunked_prefill: ClassVar[bool] = True
    """Prompts are cut to the token budget of a step. False: a prompt is computed whole, in the step that admits it."""
    whole_batch: ClassVar[bool] = False
    """Nothing joins until every member of the batch has finished, and memory returns with the last one."""
    interchangeable: ClassVar[bool] = False
    """Any free unit serves any growth, so growth cannot fail while enough units are free, whatever came before."""

    growth_tokens: int | None
    """A decoding sequence asks for this many more tokens whenever its room is used up. None: it never grows."""
    growth_slots: int
    """Slots of the pool that one growth takes."""
    pending_slots: int
    """Slots of the sources of moves that this step carries out; they return at `end_step`."""
    moved_slots: int
    """Slots copied by this step's moves and compaction; reset by `end_step`."""

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self.growth_tokens = None
        self.growth_slots = 0
        self.pending_slots = 0
        self.moved_slots = 0

    def num_hit_tokens(self, seq: Sequence) -> int:
        """Leading tokens of `seq` that `grant` would find in the pool, below `seq.known`: the last one is computed.

        Changes nothing. The engine asks if the policy `reuses_prefixes`.
        """
        return 0

    def record(self, action: str, seq: Sequence, first: int, num: int) -> None:
        """Report a decision about what `seq` holds to `log`, if anybody wants to know.

        `first`, `num`: block ids from there on where a policy has set `block_slots`, else slots. Every slot that a
        sequence gets is recorded once, in order of position: `grant` at its admission, `extend` later on, and `free`
        when it comes back. `move` takes all that a sequence has to another place, and `vacate` frees what it left
        (see `Decisions`). What is executed follows the log alone.
        """
        if self.log is not None:
            self.log.add(action, seq.row, first, num)

    @abstractmethod
    def fits(self, seq: Sequence, num_tokens: int, others_running: bool) -> bool:
        """Whether `admit` would succeed now. Changes nothing.

        The first `num_tokens` of `seq.known` tokens are in the pool when this step ends: those that `num_hit_tokens`
        finds, and those that it computes. A refusal stands until something is freed or
        moved: growths, extensions and admissions of others make no room.
        """

    @abstractmethod
    def grant(self, seq: Sequence, num_tokens: int) -> None:
        """Take the memory that `fits` has found, and say so in the sequence.

        `seq.room`: tokens that fit into it. `seq.asked_slots`: slots the policy asked for. `seq.granted_slots`: slots
        it got, rounding included. `seq.blocks`: the allocator's own, as a list of block ids or first slots.
        Each run that was taken goes to `record` as a `grant`.
        """

    def admit(self, seq: Sequence, num_tokens: int, others_running: bool) -> bool:
        """Take memory for a sequence that holds none. False and no change if it does not fit."""
        if not self.fits(seq, num_tokens, others_running):
            return False
        self.grant(seq, num_tokens)
        return True

    def extend(self, seq: Sequence, num_tokens: int) -> bool:
        """Make room for the first `num_tokens` tokens of a sequence in prefill; updates the memory fields.

        Each run that was taken goes to `record` as an `extend`.
        """
        return num_tokens <= seq.room

    def grow(self, seqs: Seq[Sequence]) -> int:
        """Give each sequence `growth_tokens` more room, in order, and stop at the first refusal.

        In a pool of interchangeable units a sequence may be named more than once.
        Returns how many were served. `asked_slots` and `granted_slots` of a sequence may go stale until `free`.
        Each run that was taken goes to `record` as an `extend`, or as the `move` of the whole sequence.
        """
        raise AssertionError(
            f"{type(self).__name__} does not grow but was asked to, for {len(seqs)} sequences"
        )

    @abstractmethod
    def free(self, seq: Sequence) -> None:
        """Take everything back. Leaves in `asked_slots` and `granted_slots` what the sequence held until now.

        By then a step has computed what `grant` and `extend` were asked for. Each run that is given back goes to
        `record` as a `free`.
        """

    def end_step(self) -> None:
        """The step that carried out this plan's copies has been committed."""
        self.pending_slots = 0
        self.moved_slots = 0

    def unusable_slots(self, seq: Sequence, num_tokens: int) -> int:
        """Free slots that do not serve `seq`, which was just refused: in runs too short, or held back."""
        return self.num_free_slots()

    def check(self, holders: Iterable[Sequence]) -> None:
        """Recount everything from runs and free lists.

        INV-1: they add up to the pool. INV-2: each slot is held, free or cached. INV-3: as nothing is shared, the count
        of references to a held slot is 1: it is in one table, once.
        """
        nobody = -1
        owner = np.full(self.num_slots, nobody)
        for seq in holders:
            for first, num in self.runs(seq):
                for slot in (first, first + num - 1):
                    assert 0 <= slot < self.num_slots, (
                        f"INV-2: request {seq.row} holds slot {slot}, outside a pool of {self.num_slots}"
                    )
                taken = np.flatnonzero(owner[first : first + num] != nobody) + first
                assert not taken.size, (
                    f"INV-3: slot {taken[0]} is held by request {seq.row} and by request {owner[taken[0]]}, "
                    "but nothing is shared: it must be in one table, once"
                )
                owner[first : first + num] = seq.row
        num_held = int((owner != nobody).sum())
        is_unheld = np.zeros(self.num_slots, dtype=bool)
        counts = {"free": self.num_free_slots(), "cached": self.num_cached_slots()}
        for state, runs in (("free", self.free_runs()), ("cached", self.cached_runs())):
            for first, num in runs:
                for slot in (first, first + num - 1):
                    assert 0 <= slot < self.num_slots, (
                        f"INV-2: slot {slot} is {state}, outside a pool of {self.num_slots}"
                    )
                taken = np.flatnonzero(owner[first : first + num] != nobody) + first
                assert not taken.size, (
                    f"INV-2: slot {taken[0]} is {state} and held by request {owner[taken[0]]}"
                )
                assert not is_unheld[first : first + num].any(), (
                    f"INV-2: slots from {first} are {state}, and free or cached already"
                )
                is_unheld[first : first + num] = True
            num_in_runs = sum(num for _, num in runs)
            assert num_in_runs == counts[state], (
                f"INV-1: {state} runs hold {num_in_runs} slots, the {state} list says {counts[state]}"
            )
        num_free, num_cached = counts.values()
        total = num_held + num_free + num_cached
        assert total == self.num_slots, (
            f"INV-1: {num_held} slots held + {num_free} free + {num_cached} cached = {total}, "
            f"the pool has {self.num_slots}"
        )
