"""The engine: the scheduler's plans, applied as they are carried out."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from .plan import Plan
from .recorder import Sample
from .scheduler import Scheduler
from .sequence import NEVER, Sequence


class Engine(Scheduler):
    """`plan` decides what the next step does, `commit` applies what it did.

    In between, an executor carries the plan out, on a device or on a simulated clock.
    """

    def plan(self, now_ns: int) -> Plan | None:
        plan = super().plan(now_ns)
        if self.paranoid:
            self.check()
        return plan

    def commit(self, plan: Plan, ends_ns: Seq[int]) -> None:
        """The planned step, and what followed it, have ended at `ends_ns`."""
        assert plan.start_ns <= ends_ns[0], (
            f"INV-4: a step of {plan.start_ns} ns ended at {ends_ns[0]} ns"
        )
        self.ledger.num_prefill_tokens += plan.num_prefill_tokens
        times_ns = [plan.start_ns, *ends_ns]
        num_steps, done = len(ends_ns), plan.max_steps
        self._advance(plan, times_ns if done >= num_steps else times_ns[: done + 1], True)
        while done < num_steps:
            self.ledger.set_free(self.allocator.num_free_slots(), 0, times_ns[done])
            segment_end = done + self._finish.next_step() - self.step + 1
            self._advance(plan, times_ns[done : segment_end + 1], False)
            done = segment_end

    def _advance(self, plan: Plan, times_ns: Seq[int], first: bool) -> None:
        """One segment, whose steps lie between the times. Chunks, moves and planned growths belong to the first."""
        ledger, num_decoding = self.ledger, self._num_decoding
        num_steps, end_ns = len(times_ns) - 1, times_ns[-1]
        if (num_steps > 1 or not first) and self._ahead:
            self._grow_ahead(self.step + first, times_ns[first:-1])
        if num_decoding:
            num_tokens = num_decoding * num_steps
            self._context += num_tokens
            if self._kept:
                ledger.live += num_tokens
                ledger.live_moment += num_decoding * (
                    end_ns if num_steps == 1 else sum(times_ns) - times_ns[0]
                )
                ledger.num_decode_tokens += num_tokens
            self.recorder.gaps.add(times_ns, num_decoding)
        self.step += num_steps
        if self._log is not None:
            self._log.step = self.step - 1
        if end_ns >= self.recorder.row_end_ns:
            self.recorder.close_row(ledger.totals(end_ns, self.step), self._sample(end_ns))
        if first and plan.moved_slots:
            self.moved_slots += plan.moved_slots
            self._blocked = False  # free runs have changed
            pending = self.allocator.pending_slots
            ledger.change(-pending, -pending, -pending, end_ns)
            self.allocator.end_step()
        if self._finish.next_step() < self.step:
            for seq in self._finish.pop():
                self._growth.remove(seq, self.step)
                self._num_decoding -= 1
                self._context -= seq.end
                self._end(seq, end_ns)
        if first and plan.chunks:
            self._blocked = False  # the budget of the next step is another one
            for seq, num_tokens in plan.chunks:
                seq.computed += num_tokens
                ledger.commit(num_tokens * self._kept, end_ns)
                if seq.computed == seq.known:
                    self._start_decoding(seq, end_ns)
        if self.paranoid:
            self.check()

    def _grow_ahead(self, step: int, starts_ns: Seq[int]) -> None:
        """Growths of steps behind the first, which `_look_ahead` has found to fit whatever their order."""
        allocator, ledger = self.allocator, self.ledger
        assert self._growth_tokens is not None
        growers, growth_moment, num_tail, tail_moment = self._growth.take_ahead(
            step, starts_ns, self._growth_tokens
        )
        if not growers:
            return
        num_served = allocator.grow(growers)
        assert num_served == len(growers), (
            f"{num_served} of {len(growers)} planned growths were served"
        )
        grown, grown_moment = self._growth_slots * num_served, self._growth_slots * growth_moment
        free_slots = allocator.num_free_slots()
        assert free_slots == ledger.free - grown, (
            f"INV-1: {ledger.free} free slots less {grown} are not {free_slots}"
        )
        ledger.free = free_slots
        if free_slots < ledger.least_free:
            ledger.least_free = free_slots
        ledger.free_moment -= grown_moment
        ledger.granted += grown
        ledger.granted_moment += grown_moment
        ledger.asked += grown
        ledger.asked_moment += grown_moment
        ledger.useful += grown - num_tail
        ledger.useful_moment += grown_moment - tail_moment

    def _start_decoding(self, seq: Sequence, end_ns: int) -> None:
        """A prefill is complete, which also gives a token."""
        if seq.last_token_ns == NEVER:
            self.requests.first_token_ns[seq.row] = end_ns
        else:
            self.recorder.gaps.add((seq.last_token_ns, end_ns), 1)
        if seq.known == seq.end:
            self._end(seq, end_ns)
            return
        seq.decoding = True
        seq.decode_offset = seq.known - self.step
        self._num_decoding += 1
        self._context += seq.known
        self._finish.add(seq, self.step + seq.end - seq.known - 1)
        if self._growth_tokens is not None:
            self._growth.add(seq, self.step, self._growth_tokens, self._growth_slots)

    def _end(self, seq: Sequence, end_ns: int) -> None:
        """The last token is out."""
        del self.running[seq.serial]
        self.requests.finished_ns[seq.row] = end_ns
        self._blocked = False
        allocator, ledger, live = self.allocator, self.ledger, seq.end * self._kept
        if not self._whole_batch:
            allocator.free(seq)
            ledger.leave(
                live, min(seq.asked_slots, seq.end), seq.asked_slots, seq.granted_slots, end_ns
            )
            return
        ledger.leave(
            live, seq.end, 0, 0, end_ns
        )  # still granted, but nothing will be written there
        self.held.append(seq)
        if not self.running:
            for member in self.held:
                allocator.free(member)
                ledger.change(0, -member.asked_slots, -member.granted_slots, end_ns)
            self.held.clear()

    @property
    def recomputed_tokens(self) -> int:
        """Committed tokens lost to preemptions, and, without a cache, prefixes computed again."""
        return self.ledger.recomputed_tokens

    @property
    def least_free_slots(self) -> int:
        """The fewest slots that were free in any step, between its plan and its commit."""
        return self.ledger.least_free

    def idle(self, start_ns: int, end_ns: int) -> None:
        """Nothing ran and nobody waited from start to end."""
        self.ledger.set_free(self.allocator.num_free_slots(), 0, start_ns)
        if end_ns >= self.recorder.row_end_ns:
            self.recorder.close_row(self.ledger.totals(end_ns, self.step), self._sample(end_ns))

    def finish(self, end_ns: int) -> None:
        """The run is over. INV-8: everything is free, and every request has ended (INV-5)."""
        ledger, free_slots = self.ledger, self.allocator.num_free_slots()
        assert free_slots == self.allocator.num_slots, (
            f"INV-8: {free_slots} of {self.allocator.num_slots} slots are free after the last request"
        )
        totals = (
            ledger.live,
            ledger.useful,
            ledger.asked,
            ledger.granted,
            ledger.running,
            self._context,
        )
        assert not any(totals), f"INV-8: totals {totals} are left after the last request"
        unfinished = [row for row in self.requests.accepted if self.requests.finished_ns[row] < 0]
        assert not unfinished, f"INV-5: requests {unfinished[:5]} of {len(unfinished)} never ended"
        self.recorder.finish(ledger.totals(end_ns, self.step), self._sample(end_ns))

    def _sample(self, end_ns: int) -> Sample:
        allocator = self.allocator
        pieces: tuple[tuple[int, int, int], ...] = ()
        if self.recorder.snapshots:
            holders = (*self.held, *self.running.values())
            pieces = tuple(
                (first, num, seq.row) for seq in holders for first, num in allocator.runs(seq)
            )
        num_waiting = self.queue.advance(end_ns)
        return Sample(num_waiting, allocator.largest_free_run(), allocator.num_free_slots(), pieces)

    def check(self) -> None:
        """Recount the totals and the pool from the sequences."""
        running = list(self.running.values())
        self.allocator.check([*running, *self.held])
        live = sum(seq.committed(self.step) for seq in running) * self._kept
        assert live == self.ledger.live, (
            f"INV-1: {live} tokens are committed, the total says {self.ledger.live}"
        )
        for seq in running if self._kept else ():
            committed = seq.committed(self.step)
            num_slots = sum(num for _, num in self.allocator.runs(seq))
            assert committed <= num_slots, (
                f"INV-7: request {seq.row} has committed {committed} tokens to {num_slots} slots: "
                "some that it reads it has not written"
            )
        held = sum(num for seq in [*running, *self.held] for _, num in self.allocator.runs(seq))
        assert held == self.ledger.granted, (
            f"INV-1: sequences hold {held} slots, the total says {self.ledger.granted}"
        )
        decoding = [seq for seq in running if seq.decoding]
        assert len(decoding) == self._num_decoding, (
            f"{len(decoding)} decode, the total says {self._num_decoding}"
        )
