"""What the next step does: growth, preemption, prefill chunks, admissions, and how far to go on unattended.

Running sequences are never visited one by one. They wait in two calendars, by the step at which their room is used
up and by the step at which they finish, and totals are kept for everything the cost model and the recorder need.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from .calendar import FinishCalendar, GrowthCalendar
from .decisions import Decisions
from .ledger import Ledger
from .plan import Plan
from .policies.base import Allocator
from .queue import WaitingQueue
from .recorder import Recorder
from .requests import RequestTable
from .sequence import Sequence

UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Limits:
    """What a step may hold: sequences, and tokens (for policies that chunk prompts)."""

    max_num_seqs: int
    max_num_batched_tokens: int


class Scheduler:
    """The planning half of the engine: first come first served, iteration-level or in whole batches."""

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
        # The one running sequence whose prefill is incomplete.
        self._chunking: Sequence | None = None
        self._growth = GrowthCalendar()
        self._finish = FinishCalendar()
        self._num_admissions = 0
        self._num_decoding = 0
        self._context = 0  # committed tokens of the decoding sequences
        # The head of the queue was turned away, and nothing that could change this has happened since.
        self._blocked = False
        # That head and the tokens it asked room for, if it was turned away for memory.
        self._refused: tuple[Sequence, int] | None = None
        # Of the allocator, looked up once: these are read in every step.
        self._kept = int(allocator.keeps_kv)
        self._chunked = allocator.chunked_prefill
        self._whole_batch = allocator.whole_batch
        self._growth_tokens = allocator.growth_tokens
        self._growth_slots = allocator.growth_slots
        # Growths of further steps are served together, at the commit. That needs interchangeable units, and a log would
        # show the order.
        self._ahead = (
            allocator.interchangeable and allocator.growth_tokens is not None and log is None
        )

    def plan(self, now_ns: int) -> Plan | None:
        """The next step, perhaps with more behind it, with its memory; None if nothing runs and nobody waits."""
        num_waiting = self.queue.advance(now_ns)
        if not num_waiting and not self.running:
            return None
        allocator = self.allocator
        if self._log is not None:
            self._log.step = self.step
        preempted = self._growth.next_step() == self.step and self._grow_due(now_ns)
        plan = Plan(now_ns, self._num_decoding, self._context + self._num_decoding)
        if allocator.moved_slots:
            self._blocked = False  # free runs have changed
        if self._chunking is not None or (num_waiting and not self._blocked):
            preempted |= self._prefill(plan, preempted, now_ns)
        external_slots = 0 if self._refused is None else allocator.unusable_slots(*self._refused)
        self.ledger.set_free(allocator.num_free_slots(), external_slots, now_ns)
        if allocator.moved_slots:
            plan.moved_slots = allocator.moved_slots
            # Sources of moves stay granted until the step commits.
            pending = allocator.pending_slots
            self.ledger.change(pending, pending, pending, now_ns)
        elif not self._kept:
            self._recompute_prefixes(plan)
        elif not preempted:
            self._look_ahead(plan)
        return plan

    def _grow_due(self, now_ns: int) -> bool:
        """Room for every sequence that has used up its own; True if that took a preemption."""
        bucket, _ = self._growth.pop()
        allocator, preempted = self.allocator, False
        num_served = allocator.grow(bucket)
        while num_served < len(bucket):
            preempted = True
            refused, victim = bucket[num_served], next(reversed(self.running.values()))
            self._preempt(victim, now_ns)
            if victim is not refused:
                num_served += allocator.grow(bucket[num_served:])
        if bucket:
            grown = self._growth_slots * num_served
            tail = self._growth.pop_tail(self.step)
            self.ledger.change(grown - tail, grown, grown, now_ns)
            assert self._growth_tokens is not None
            self._growth.put_back(self.step + self._growth_tokens, bucket)
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
        self.allocator.free(seq)
        lost = committed * self._kept
        self.ledger.leave(
            lost, min(seq.asked_slots, seq.end), seq.asked_slots, seq.granted_slots, now_ns
        )
        self.ledger.num_preemptions += 1
        self.ledger.recomputed_tokens += lost
        self.requests.num_preemptions[seq.row] += 1
        seq.computed = 0
        self.queue.push_preempted(seq)
        self._blocked, self._refused = False, None

    def _prefill(self, plan: Plan, preempted: bool, now_ns: int) -> bool:
        """Chunks for the budget that decodes leave: the prompt in progress, then the queue. True after a preemption."""
        budget = (
            self.limits.max_num_batched_tokens - self._num_decoding if self._chunked else UNLIMITED
        )
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
        self._refused = None
        num_admitted = 0
        while (seq := queue.head()) is not None:
            if self._whole_batch and running and not num_admitted:
                # The batch is closed. What the head cannot use even so is external, as it is at every other plan.
                if not allocator.fits(seq, seq.known, True):
                    self._refused = seq, seq.known
                break
            if budget <= 0 or len(running) == self.limits.max_num_seqs:
                break
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
        self._blocked = seq is not None
        if num_admitted:
            self._num_admissions += num_admitted
            self.ledger.enter(num_admitted, plan.start_ns)
            if queue.all_admitted and not self._blocked:
                self.recorder.end_loaded_window(self.ledger.totals(plan.start_ns, self.step))

    def _add_chunk(
        self, plan: Plan, seq: Sequence, num_tokens: int, asked_before: int, granted_before: int
    ) -> None:
        """The allocator has made room for the next tokens of the sequence."""
        before, asked, end = seq.computed, seq.asked_slots, seq.end
        useful = (asked if asked < end else end) - (asked_before if asked_before < end else end)
        self.ledger.change(
            useful, asked - asked_before, seq.granted_slots - granted_before, plan.start_ns
        )
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
        growth_tokens, deadline_ns = self._growth_tokens, self.recorder.row_end_ns
        nobody_waits = self.queue.head() is None
        if nobody_waits and self.queue.next_arrival_ns < deadline_ns:
            deadline_ns = self.queue.next_arrival_ns
        plan.deadline_ns = deadline_ns
        # A watermark that growths eat into makes their order in time matter.
        ahead = self._ahead and not self.ledger.external
        num_units = self.ledger.free // self._growth_slots if ahead else 0
        if not plan.chunks:
            num_steps = self._finish.next_step() - self.step + 1
            if growth_tokens is not None:
                if ahead:
                    if num_steps > growth_tokens:
                        num_steps = growth_tokens  # nobody grows twice
                    if num_units < self._num_decoding:
                        num_steps = self._growth.steps_within(self.step, num_steps, num_units)
                else:
                    num_steps = min(num_steps, self._growth.next_step() - self.step)
            plan.max_steps = num_steps
        if ahead and nobody_waits and self._chunking is None and num_units >= len(self.running):
            assert growth_tokens is not None
            plan.more = self._segments(plan.chunks, plan.max_steps, growth_tokens)

    def _segments(
        self, chunks: Seq[tuple[Sequence, int]], num_steps: int, growth_tokens: int
    ) -> Iterator[tuple[int, int, int]]:
        """What follows behind finishes and complete prefills, where nobody waits and no growth can fail.

        `growth_tokens` steps in all, so that nobody grows twice, and `num_steps` of them come before. The executor
        takes as many segments as it needs. The plan is not passed: a generator it holds must not hold it.
        """
        finishes = self._finish
        step, end_step = self.step + num_steps, self.step + growth_tokens
        num_seqs, context = self._num_decoding, self._context + self._num_decoding * num_steps
        events = {
            due: finishes.by_step[due]
            for due in finishes.steps[: bisect_left(finishes.steps, end_step)]
        }
        for seq, _ in chunks:
            if seq.end > seq.known:
                num_seqs += 1
                context += seq.known
                last_step = step + seq.end - seq.known - 1
                events[last_step] = [*events.get(last_step, ()), seq]
        for last_step in sorted(events):
            if last_step >= end_step:
                break
            if last_step >= step:
                yield last_step + 1 - step, num_seqs, context + num_seqs
                context += num_seqs * (last_step + 1 - step)
                step = last_step + 1
            for seq in events[last_step]:
                num_seqs -= 1
                context -= seq.end
        if num_seqs and step < end_step:
            yield end_step - step, num_seqs, context + num_seqs
