"""The engine: `plan` decides what the next step does, `commit` applies what it did.

Running sequences are never visited one by one. They wait in two calendars, by the step at which their room is used
up and by the step at which they finish, and totals are kept for everything the cost model and the recorder need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Seq
from dataclasses import dataclass

from .calendar import FinishCalendar, GrowthCalendar
from .decisions import Decisions
from .ledger import Ledger
from .plan import Plan
from .policies.base import Allocator
from .queue import WaitingQueue
from .recorder import Recorder, Sample
from .requests import RequestTable
from .sequence import NEVER, Sequence

UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Limits:
    """What a step may hold: sequences, and tokens (for policies that chunk prompts)."""

    max_num_seqs: int
    max_num_batched_tokens: int


class Engine:
    """First come first served over one allocator, iteration-level or in whole batches."""

    def __init__(
        self,
        requests: RequestTable,
        allocator: Allocator,
        limits: Limits,
        recorder: Recorder,
        log: Decisions | None = None,
    ) -> None:
        self.requests = requests
        self.queue = WaitingQueue(requests)
        self.allocator = allocator
        self.recorder = recorder
        self.limits = limits
        self.ledger = Ledger(allocator.num_free_slots())
        self.step = 0
        self.running: dict[int, Sequence] = {}  # by serial, so the latest is the last
        self.held: list[Sequence] = []  # finished members of the static batch in progress
        self.moved_slots = 0
        self.paranoid = False
        self._log = allocator.log = log
        self._chunking: Sequence | None = None  # the one running sequence whose prefill is incomplete
        self._growth = GrowthCalendar()
        self._finish = FinishCalendar()
        self._num_admissions = 0
        self._num_decoding = 0
        self._context = 0  # committed tokens of the decoding sequences
        self._refused: tuple[Sequence, int] | None = None  # the head and its tokens, if memory refused it
        self._kept = int(allocator.keeps_kv)

    def plan(self, now_ns: int) -> Plan | None:
        """The next step, or several alike; None if nothing runs and nobody waits. Takes the memory they need at once."""
        num_waiting = self.queue.advance(now_ns)
        if not num_waiting and not self.running:
            return None
        allocator = self.allocator
        if self._log is not None:
            self._log.step = self.step
        preempted = self.step in self._growth.buckets and self._grow_due(now_ns)
        plan = Plan(now_ns, self._num_decoding, self._context + self._num_decoding)
        self._refused = None
        if self._chunking is not None or (num_waiting and not preempted):
            preempted |= self._prefill(plan, preempted, now_ns)
        external_slots = 0 if self._refused is None else allocator.unusable_slots(*self._refused)
        self.ledger.set_free(allocator.num_free_slots(), external_slots, now_ns)
        if allocator.moved_slots:
            plan.moved_slots = allocator.moved_slots
            pending = allocator.pending_slots  # sources of moves stay granted until the step commits
            self.ledger.change(pending, pending, pending, now_ns)
        elif not self._kept:
            self._recompute_prefixes(plan)
        elif not preempted:
            self._look_ahead(plan)
        if self.paranoid:
            self.check()
        return plan

    def _grow_due(self, now_ns: int) -> bool:
        """Room for every sequence that has used up its own; True if that took a preemption."""
        bucket = self._growth.buckets.pop(self.step)
        allocator, preempted = self.allocator, False
        num_served = allocator.grow(bucket)
        while num_served < len(bucket):
            preempted = True
            refused, victim = bucket[num_served], next(reversed(self.running.values()))
            self._preempt(victim, now_ns)
            if victim is not refused:
                num_served += allocator.grow(bucket[num_served:])
        if bucket:
            grown = allocator.growth_slots * num_served
            tail = self._growth.pop_tail(self.step)
            self.ledger.change(grown - tail, grown, grown, now_ns)
            assert allocator.growth_tokens is not None
            self._growth.put_back(self.step + allocator.growth_tokens, bucket)
        return preempted

    def _preempt(self, seq: Sequence, now_ns: int) -> None:
        committed = seq.committed(self.step)
        if seq.decoding:
            self._num_decoding -= 1
            self._context -= committed
            self._growth.remove(seq, self.step)
            self._finish.remove(seq)
            seq.known = committed + 1
            seq.last_token_ns = now_ns
            seq.decoding = False
        else:
            self._chunking = None
        del self.running[seq.serial]
        ledger = self.ledger
        ledger.run(-1, now_ns)
        ledger.commit(-committed * self._kept, now_ns)
        ledger.num_preemptions += 1
        ledger.recomputed_tokens += committed * self._kept
        self.requests.num_preemptions[seq.row] += 1
        self._release(seq, now_ns)
        seq.computed = 0
        self.queue.push_preempted(seq)

    def _release(self, seq: Sequence, now_ns: int) -> None:
        self.allocator.free(seq)
        asked = seq.asked_slots
        self.ledger.change(-min(asked, seq.end), -asked, -seq.granted_slots, now_ns)

    def _prefill(self, plan: Plan, preempted: bool, now_ns: int) -> bool:
        """Chunks for the budget that the decodes leave: the prompt in progress, then the queue. True after a preemption."""
        chunked = self.allocator.chunked_prefill
        budget = self.limits.max_num_batched_tokens - self._num_decoding if chunked else UNLIMITED
        seq = self._chunking
        if seq is not None and budget:
            num_tokens = min(seq.known - seq.computed, budget)
            asked, granted = seq.asked_slots, seq.granted_slots
            if not self.allocator.extend(seq, seq.computed + num_tokens):
                # It is the latest, so without memory it preempts itself.
                self._preempt(seq, now_ns)
                return True
            self._add_chunk(plan, seq, num_tokens, asked, granted)
            budget -= num_tokens
        if not preempted:
            self._admit(plan, budget)
            assert self.running, (
                f"INV-5: nothing runs at {now_ns} ns, and the head of the queue was refused by an empty pool: "
                f"{self._refused and (self._refused[0].row, self._refused[1])} (row, tokens), "
                f"{self.allocator.num_slots} slots"
            )
        return False

    def _admit(self, plan: Plan, budget: int) -> None:
        """Admit from the head of the queue until it is empty, or a limit, the budget or the memory says no."""
        queue, allocator, running = self.queue, self.allocator, self.running
        if allocator.whole_batch and running:
            # The batch is closed. What the head cannot use even so is external, as it is at every other plan.
            head = queue.head()
            if head is not None and not allocator.fits(head, head.known, True):
                self._refused = head, head.known
            return
        num_admitted = 0
        while budget > 0 and len(running) < self.limits.max_num_seqs and (seq := queue.head()) is not None:
            num_tokens = min(seq.known, budget)
            if not allocator.admit(seq, num_tokens, bool(running)):
                self._refused = seq, num_tokens
                break
            queue.pop(plan.start_ns)
            seq.serial = self._num_admissions + num_admitted
            num_admitted += 1
            running[seq.serial] = seq
            self._add_chunk(plan, seq, num_tokens, 0, 0)
            budget -= num_tokens
        if num_admitted:
            self._num_admissions += num_admitted
            self.ledger.run(num_admitted, plan.start_ns)
            if queue.all_admitted:
                self.recorder.end_loaded_window(self.ledger.totals(plan.start_ns, self.step))

    def _add_chunk(self, plan: Plan, seq: Sequence, num_tokens: int, asked_before: int, granted_before: int) -> None:
        """The allocator has made room for the next tokens of the sequence."""
        before, asked, end = seq.computed, seq.asked_slots, seq.end
        useful = min(asked, end) - min(asked_before, end)
        self.ledger.change(useful, asked - asked_before, seq.granted_slots - granted_before, plan.start_ns)
        plan.chunks.append((seq, num_tokens))
        plan.num_prefill_tokens += num_tokens
        plan.prefill_pairs += num_tokens * before + num_tokens * (num_tokens + 1) // 2
        plan.prefill_context_slots += before + num_tokens
        self._chunking = seq if before + num_tokens < seq.known else None

    def _recompute_prefixes(self, plan: Plan) -> None:
        """Without a cache each decoding sequence computes its whole prefix again, and reads no KV of earlier steps."""
        plan.num_decode_tokens = plan.decode_context_slots = plan.prefill_context_slots = 0
        for seq in self.running.values():
            if seq.decoding:
                known = seq.committed(self.step) + 1
                plan.num_prefill_tokens += known
                plan.prefill_pairs += known * (known + 1) // 2
        self.ledger.recomputed_tokens += self._context

    def _look_ahead(self, plan: Plan) -> None:
        """How many steps can follow before something has to be decided."""
        allocator, growth_tokens = self.allocator, self.allocator.growth_tokens
        nobody_waits = self.queue.head() is None
        plan.deadline_ns = self.recorder.row_end_ns
        if nobody_waits:
            plan.deadline_ns = min(plan.deadline_ns, self.queue.next_arrival_ns)
        # Growths of further steps are served together, at the commit. That needs interchangeable units, enough of them,
        # and nothing that depends on the order in time: the log, or a watermark that growths eat into.
        ahead = allocator.interchangeable and self._log is None and not self.ledger.external
        num_units = self.ledger.free // allocator.growth_slots if growth_tokens is not None and ahead else 0
        if not plan.chunks:
            num_steps = self._finish.next_step() - self.step + 1
            if growth_tokens is not None:
                if ahead:
                    num_steps = min(num_steps, growth_tokens)  # nobody grows twice
                    if num_units < self._num_decoding:
                        num_steps = self._growth.steps_within(self.step, num_steps, num_units)
                else:
                    num_steps = min(num_steps, self._growth.next_step() - self.step)
            plan.max_steps = num_steps
        if growth_tokens is not None and nobody_waits and self._chunking is None and num_units >= len(self.running):
            plan.more = self._segments(plan, growth_tokens)

    def _segments(self, plan: Plan, growth_tokens: int) -> Iterator[tuple[int, int, int]]:
        """What follows behind finishes and complete prefills, where nobody waits and no growth can fail.

        `growth_tokens` steps in all, so that nobody grows twice. The executor takes as many segments as it needs.
        """
        by_step, step, end_step = self._finish.by_step, self.step + plan.max_steps, self.step + growth_tokens
        num_seqs, context = self._num_decoding, self._context + self._num_decoding * plan.max_steps
        joined: dict[int, list[Sequence]] = {}
        for seq, _ in plan.chunks:
            if seq.end > seq.known:
                num_seqs += 1
                context += seq.known
                joined.setdefault(step + seq.end - seq.known - 1, []).append(seq)
        while True:
            for seq in (*by_step.get(step - 1, ()), *joined.get(step - 1, ())):
                num_seqs -= 1
                context -= seq.end
            if step >= end_step or not num_seqs:
                return
            first_step = step
            while step < end_step and step not in by_step and step not in joined:
                step += 1
            step = min(step + 1, end_step)
            yield step - first_step, num_seqs, context + num_seqs
            context += num_seqs * (step - first_step)

    def commit(self, plan: Plan, ends_ns: Seq[int]) -> None:
        """The planned step, and what followed it, have ended at `ends_ns`."""
        assert plan.start_ns <= ends_ns[0], f"INV-4: a step of {plan.start_ns} ns ended at {ends_ns[0]} ns"
        self.ledger.num_prefill_tokens += plan.num_prefill_tokens
        times_ns = [plan.start_ns, *ends_ns]
        num_steps, done = len(ends_ns), plan.max_steps
        self._advance(plan, times_ns if done >= num_steps else times_ns[: done + 1], first=True)
        while done < num_steps:
            self.ledger.set_free(self.allocator.num_free_slots(), 0, times_ns[done])
            segment_end = min(done + self._finish.next_step() - self.step + 1, num_steps)
            self._advance(plan, times_ns[done : segment_end + 1], first=False)
            done = segment_end

    def _advance(self, plan: Plan, times_ns: Seq[int], first: bool) -> None:
        """One segment, whose steps lie between the times. Chunks, moves, and the first step's growths are the first's."""
        ledger, num_decoding = self.ledger, self._num_decoding
        num_steps, end_ns = len(times_ns) - 1, times_ns[-1]
        if (num_steps > 1 or not first) and self.allocator.growth_tokens is not None:
            self._grow_ahead(self.step + first, times_ns[first:-1], self.allocator.growth_tokens)
        if num_decoding:
            num_tokens = num_decoding * num_steps
            self._context += num_tokens
            if self._kept:
                ledger.live += num_tokens
                ledger.live_moment += num_decoding * (end_ns if num_steps == 1 else sum(times_ns) - times_ns[0])
                ledger.num_decode_tokens += num_tokens
            self.recorder.gaps.add_steps(times_ns, num_decoding)
        self.step += num_steps
        if end_ns >= self.recorder.row_end_ns:
            self.recorder.close_row(ledger.totals(end_ns, self.step), self._sample(end_ns))
        if first and plan.moved_slots:
            self.moved_slots += plan.moved_slots
            pending = self.allocator.pending_slots
            ledger.change(-pending, -pending, -pending, end_ns)
            self.allocator.end_step()
        for seq in self._finish.pop(self.step - 1):
            self._growth.remove(seq, self.step)
            self._num_decoding -= 1
            self._context -= seq.end
            self._end(seq, end_ns)
        if first:
            for seq, num_tokens in plan.chunks:
                seq.computed += num_tokens
                ledger.commit(num_tokens * self._kept, end_ns)
                if seq.computed == seq.known:
                    self._start_decoding(seq, end_ns)
        if self.paranoid:
            self.check()

    def _grow_ahead(self, step: int, starts_ns: Seq[int], growth_tokens: int) -> None:
        """Growths of steps behind the first, which `_look_ahead` has found to fit whatever their order."""
        allocator, ledger = self.allocator, self.ledger
        growers, growth_moment, num_tail, tail_moment = self._growth.take_ahead(step, starts_ns, growth_tokens)
        if not growers:
            return
        num_served = allocator.grow(growers)
        assert num_served == len(growers), f"{num_served} of {len(growers)} planned growths were served"
        grown, grown_moment = allocator.growth_slots * num_served, allocator.growth_slots * growth_moment
        free_slots = allocator.num_free_slots()
        assert free_slots == ledger.free - grown, (
            f"INV-1: {ledger.free} free slots less {grown} are not {free_slots}"
        )
        ledger.free = free_slots
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
            self.recorder.gaps.add(end_ns - seq.last_token_ns, 1)
        if seq.known == seq.end:
            self._end(seq, end_ns)
            return
        seq.decoding = True
        seq.decode_offset = seq.known - self.step
        self._num_decoding += 1
        self._context += seq.known
        self._finish.add(seq, self.step + seq.end - seq.known - 1)
        if self.allocator.growth_tokens is not None:
            self._growth.add(seq, self.step, self.allocator.growth_tokens, self.allocator.growth_slots)

    def _end(self, seq: Sequence, end_ns: int) -> None:
        """The last token is out."""
        del self.running[seq.serial]
        self.requests.finished_ns[seq.row] = end_ns
        self.ledger.run(-1, end_ns)
        self.ledger.commit(-seq.end * self._kept, end_ns)
        if not self.allocator.whole_batch:
            self._release(seq, end_ns)
            return
        self.ledger.change(-seq.end, 0, 0, end_ns)  # still granted, but nothing will be written there
        self.held.append(seq)
        if not self.running:
            for member in self.held:
                self._release(member, end_ns)
                self.ledger.change(member.end, 0, 0, end_ns)
            self.held.clear()

    @property
    def recomputed_tokens(self) -> int:
        """Committed tokens lost to preemptions, and, without a cache, prefixes computed again."""
        return self.ledger.recomputed_tokens

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
        totals = (ledger.live, ledger.useful, ledger.asked, ledger.granted, ledger.running, self._context)
        assert not any(totals), f"INV-8: totals {totals} are left after the last request"
        unfinished = [row for row in self.requests.accepted if self.requests.finished_ns[row] < 0]
        assert not unfinished, f"INV-5: requests {unfinished[:5]} of {len(unfinished)} never ended"
        self.recorder.finish(ledger.totals(end_ns, self.step), self._sample(end_ns))

    def _sample(self, end_ns: int) -> Sample:
        allocator, pieces = self.allocator, ()
        if self.recorder.snapshots:
            holders = (*self.held, *self.running.values())
            pieces = tuple((first, num, seq.row) for seq in holders for first, num in allocator.runs(seq))
        num_waiting = self.queue.advance(end_ns)
        return Sample(num_waiting, allocator.largest_free_run(), allocator.num_free_slots(), pieces)

    def check(self) -> None:
        """Recount the totals and the pool from the sequences."""
        running = list(self.running.values())
        self.allocator.check([*running, *self.held])
        live = sum(seq.committed(self.step) for seq in running) * self._kept
        assert live == self.ledger.live, f"INV-1: {live} tokens are committed, the total says {self.ledger.live}"
        held = sum(num for seq in [*running, *self.held] for _, num in self.allocator.runs(seq))
        assert held == self.ledger.granted, f"INV-1: sequences hold {held} slots, the total says {self.ledger.granted}"
        decoding = [seq for seq in running if seq.decoding]
        assert len(decoding) == self._num_decoding, f"{len(decoding)} decode, the total says {self._num_decoding}"
