"""The engine: the scheduler's plans, applied as they are carried out."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from .engine_contract import Work
from .plan import Plan
from .recorder import Sample
from .scheduler import Scheduler
from .sequence import NEVER, Sequence
from .summary import parts_of


class Engine(Scheduler):
    """`plan` decides what the next step does, `commit` applies what it did.

    In between, an executor carries the plan out, on a device or on a simulated clock.
    """

    def plan(self, now_ns: int) -> Plan | None:
        plan = Scheduler.plan(self, now_ns)
        if self.paranoid:
            self.check()
        return plan

    def commit(self, plan: Plan, ends_ns: Seq[int]) -> None:
        """The planned step, and what followed it, have ended at `ends_ns`."""
        start_ns, num_steps, done = plan.start_ns, len(ends_ns), plan.max_steps
        assert start_ns <= ends_ns[0], f"INV-4: a step of {start_ns} ns ended at {ends_ns[0]} ns"
        self.ledger.num_prefill_tokens += plan.num_prefill_tokens
        times_ns = [start_ns, *ends_ns]
        if done >= num_steps:
            self._decode(times_ns, 1)  # the plan has granted the growths of the first step
            end_ns = times_ns[-1]
        else:
            self._decode(times_ns[: done + 1], 1)
            end_ns = times_ns[done]
        if plan.moved_slots:
            self._end_moves(plan.moved_slots, end_ns)
        due_steps = self._finish.steps
        if due_steps and due_steps[0] < self.step:
            self._end_due(end_ns)
        if plan.chunks:
            self._end_chunks(plan.chunks, end_ns)
        if self.paranoid:
            self.check()
        ledger, allocator = self.ledger, self.allocator
        while done < num_steps:
            free_slots = (
                allocator.num_free_slots()
            )  # more, if somebody has finished; nothing is external
            ledger.free_moment += (free_slots - ledger.free) * times_ns[done]
            ledger.free = free_slots
            end = done + due_steps[0] - self.step + 1 if due_steps else num_steps
            if end > num_steps:
                end = num_steps
            self._decode(times_ns[done : end + 1], 0)
            if due_steps and due_steps[0] < self.step:
                self._end_due(times_ns[end])
            if self.paranoid:
                self.check()
            done = end

    def work(self, plan: Plan) -> list[Work]:
        """What the first step of `plan` computes: chunks as planned, then a token, or all of them, of who decodes."""
        decoding = [
            (seq, seq.committed(self.step)) for seq in self.running.values() if seq.decoding
        ]
        chunks = [Work(seq, seq.computed, num_tokens) for seq, num_tokens in plan.chunks]
        if self._kept:
            return chunks + [Work(seq, committed, 1) for seq, committed in decoding]
        return chunks + [Work(seq, 0, committed + 1) for seq, committed in decoding]

    def holders(self) -> list[Sequence]:
        """Who holds slots: finished members of a static batch, and whoever runs."""
        return [*self.held, *self.running.values()]

    def parts(self) -> dict[str, int]:
        """Slots of each part as the recorder counts them from the latest plan to its commit."""
        return parts_of(self.ledger.per_ns())

    @property
    def refused_row(self) -> int | None:
        """The head of the queue, if the latest plan had no memory for it."""
        return None if self._refused is None else self._refused[0].row

    def _decode(self, times_ns: list[int], first_growth: int) -> None:
        """Steps between which the decoding sequences stay the same, from each of the times to the next.

        Growths from step `first_growth` of these on have not been granted.
        """
        ledger, recorder, num_decoding = self.ledger, self.recorder, self._num_decoding
        num_steps, end_ns = len(times_ns) - 1, times_ns[-1]
        if num_decoding:
            if num_steps > first_growth and self._ahead:
                self._grow_ahead(times_ns, first_growth)
            if num_steps == 1:
                moment = end_ns
                recorder.gaps.add_one(end_ns - times_ns[0], num_decoding)
            else:
                moment = sum(times_ns) - times_ns[0]
                recorder.gaps.add(times_ns, num_decoding)
            num_tokens = num_decoding * num_steps
            self._context += num_tokens
            if self._kept:
                ledger.live += num_tokens
                ledger.live_moment += num_decoding * moment
                ledger.num_decode_tokens += num_tokens
        self.step += num_steps
        if self._log is not None:
            self._log.step = self.step - 1
        if end_ns >= recorder.row_end_ns:
            recorder.close_row(ledger.totals(end_ns, self.step), self._sample(end_ns))

    def _grow_ahead(self, times_ns: list[int], first: int) -> None:
        """Growths of steps that no plan has seen, which `_look_ahead` has found to fit whatever their order."""
        growers, growth_moment, num_tail, tail_moment = self._growth.ahead(
            self.step, times_ns, first
        )
        if not growers:
            return
        allocator, ledger = self.allocator, self.ledger
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
        ledger.grown += grown
        ledger.grown_moment += grown_moment
        if num_tail:
            ledger.tail += num_tail
            ledger.tail_moment += tail_moment

    def _end_moves(self, moved_slots: int, end_ns: int) -> None:
        """What the allocator copied has left its old places."""
        self.moved_slots += moved_slots
        self._blocked = False  # free runs have changed
        pending = self.allocator.pending_slots
        self.ledger.change(-pending, -pending, -pending, end_ns)
        self.allocator.end_step()

    def _end_chunks(self, chunks: list[tuple[Sequence, int]], end_ns: int) -> None:
        """Prompts, or parts of them, have been computed. A complete one also gives a token."""
        if not self._refusal_stands or self._chunking is not None:
            self._blocked = False  # the budget of the next step is another one
        step, num_committed = self.step, 0
        for seq, num_tokens in chunks:
            num_committed += num_tokens
            known = seq.known
            seq.computed += num_tokens
            if seq.computed < known:
                continue
            if seq.last_token_ns == NEVER:
                self.requests.first_token_ns[seq.row] = end_ns
            else:
                self.recorder.gaps.add_one(end_ns - seq.last_token_ns, 1)
            if known == seq.end:
                self._end(seq, end_ns)
                continue
            seq.decoding = True
            seq.decode_offset = known - step
            self._num_decoding += 1
            self._context += known
            self._finish.add(seq, step + seq.end - known - 1)
            if self._growth_tokens is not None:
                self._growth.add(seq, step)
        if self._kept:
            self.ledger.commit(num_committed, end_ns)

    def _end_due(self, end_ns: int) -> None:
        """The last step gave some sequences their last token."""
        for seq in self._finish.pop():
            self._growth.remove(seq, self.step)
            self._num_decoding -= 1
            self._context -= seq.end
            self._end(seq, end_ns)

    def _end(self, seq: Sequence, end_ns: int) -> None:
        """The last token is out."""
        del self.running[seq.serial]
        self.requests.finished_ns[seq.row] = end_ns
        self.queue.finish(seq.row, end_ns)
        self._blocked = False
        allocator, ledger, end = self.allocator, self.ledger, seq.end
        live = end if self._kept else 0
        if not self._whole_batch:
            allocator.free(seq)
            asked = seq.asked_slots
            ledger.leave(live, asked if asked < end else end, asked, seq.granted_slots, end_ns)
            return
        # Still granted, but nothing will be written there.
        ledger.leave(live, end, 0, 0, end_ns)
        self.held.append(seq)
        if not self.running:
            for member in self.held:
                allocator.free(member)
                ledger.change(0, -member.asked_slots, -member.granted_slots, end_ns)
            self.held.clear()

    def details(self) -> dict[str, Any]:
        """Nothing beside what every engine counts."""
        return {}

    @property
    def recomputed_tokens(self) -> int:
        """Committed tokens lost to preemptions, and, without a cache, prefixes computed again."""
        return self.ledger.recomputed_tokens

    @property
    def most_running(self) -> int:
        """The most requests that ran in any step."""
        return self.ledger.most_running

    @property
    def least_free_slots(self) -> int:
        """The fewest slots that nobody held in any step, between its plan and its commit."""
        return self.ledger.least_free

    def idle(self, start_ns: int, end_ns: int) -> None:
        """Nothing ran and nobody waited from start to end."""
        self.ledger.idle_ns += end_ns - start_ns
        if self._reuses_prefixes:
            self.ledger.set_cached(self.allocator.num_cached_slots(), start_ns)
        self.ledger.set_free(self.allocator.num_free_slots(), 0, start_ns)
        if end_ns >= self.recorder.row_end_ns:
            self.recorder.close_row(self.ledger.totals(end_ns, self.step), self._sample(end_ns))

    def finish(self, end_ns: int) -> None:
        """The run is over. INV-8: everything is free or cached, and every request has ended (INV-5)."""
        ledger, allocator = self.ledger, self.allocator
        unheld_slots = allocator.num_free_slots() + allocator.num_cached_slots()
        assert unheld_slots == allocator.num_slots, (
            f"INV-8: {unheld_slots} of {allocator.num_slots} slots are free or cached after the last request"
        )
        totals = (
            ledger.live,
            ledger.useful + ledger.grown - ledger.tail,
            ledger.asked + ledger.grown,
            ledger.granted_slots,
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
            pieces = tuple(
                (first, num, seq.row)
                for seq in self.holders()
                for first, num in allocator.runs(seq)
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
        assert held == self.ledger.granted_slots, (
            f"INV-1: sequences hold {held} slots, the total says {self.ledger.granted_slots}"
        )
        decoding = [seq for seq in running if seq.decoding]
        assert len(decoding) == self._num_decoding, (
            f"{len(decoding)} decode, the total says {self._num_decoding}"
        )
