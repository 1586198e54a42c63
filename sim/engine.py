"""The engine: `plan` decides what the next step does, `commit` applies what it did.

Running sequences are never visited one by one. They wait in two calendars, by the step at which their room is used
up and by the step at which they finish, and totals are kept for everything the cost model and the recorder need.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from .calendar import FinishCalendar, GrowthCalendar
from .decisions import Decisions
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
    """First come first served over one allocator, iteration-level or in whole batches.

    Slot totals (`live` and so on) are those of the pool at the next plan; `useful` is the part of the granted slots
    that lies below E of its sequence.
    """

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
        self._log = allocator.log = log
        self.step = 0
        self.running: dict[int, Sequence] = {}  # by serial, so the latest is the last
        self.held: list[Sequence] = []  # finished members of the static batch in progress
        self._chunking: Sequence | None = None  # the one running sequence whose prefill is incomplete
        self._growth = GrowthCalendar()
        self._finish = FinishCalendar()
        self._num_admissions = 0
        self._num_decoding = 0
        self._context = 0  # committed tokens of the decoding sequences
        self._refused: tuple[Sequence, int] | None = None  # the head and its tokens, if memory refused it
        self._kept = int(allocator.keeps_kv)
        self.live = self.useful = self.asked = self.granted = 0
        self.moved_slots = 0
        self.paranoid = False

    # -- plan ---------------------------------------------------------------------------------------------------

    def plan(self, now_ns: int) -> Plan | None:
        """The next step, or several alike; None if nothing runs and nobody waits. Takes the memory they need at once."""
        queue = self.queue
        queue.advance(now_ns)
        if not self.running and not len(queue):
            return None
        if self._log is not None:
            self._log.step = self.step
        preempted = self._grow_due(now_ns)
        plan = Plan(now_ns, 0, 0, 0, self._num_decoding, self._context + self._num_decoding, 0, 1, None)
        chunked = self.allocator.chunked_prefill
        budget = self.limits.max_num_batched_tokens - self._num_decoding if chunked else UNLIMITED
        if self._chunking is not None and budget:
            num_tokens = min(self._chunking.known - self._chunking.computed, budget)
            preempted |= not self._continue_chunk(plan, self._chunking, num_tokens, now_ns)
            budget -= num_tokens
        self._refused = None
        if len(queue) and not preempted:
            self._admit(plan, budget, now_ns)
        assert self.running or preempted, (
            f"INV-5: nothing runs at {now_ns} ns, {len(queue)} wait, and request {queue.head().row} was refused "
            f"{queue.head().known} tokens by an empty pool of {self.allocator.num_slots} slots"
        )
        if not self._kept:
            self._recompute_prefixes(plan)
        plan.moved_slots = self.allocator.moved_slots
        if not (plan.chunks or preempted or plan.moved_slots) and self._kept:
            self._repeat(plan)
        if queue.all_admitted:
            self.recorder.begin_drain(now_ns)
        if self.paranoid:
            self.check()
        return plan

    def _grow_due(self, now_ns: int) -> bool:
        """Room for every sequence that has used up its own; True if that took a preemption."""
        bucket = self._growth.pop(self.step)
        if bucket is None:
            return False
        allocator, preempted = self.allocator, False
        num_served = allocator.grow(bucket)
        while num_served < len(bucket):
            preempted = True
            refused, victim = bucket[num_served], next(reversed(self.running.values()))
            self._preempt(victim, now_ns)
            if victim is not refused:
                num_served += allocator.grow(bucket[num_served:])
        self._account_growth(bucket, self.step)
        return preempted

    def _account_growth(self, bucket: list[Sequence], step: int) -> int:
        """Everybody in the bucket has grown in `step`. Returns the tail slots that thereby came to be."""
        grown = self.allocator.growth_slots * len(bucket)
        tail = self._growth.pop_tail(step)
        self.granted += grown
        self.asked += grown
        self.useful += grown - tail
        if bucket:
            assert self.allocator.growth_tokens is not None
            self._growth.put_back(step + self.allocator.growth_tokens, bucket)
        return tail

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
        self.live -= committed * self._kept
        self._release(seq)
        seq.computed = 0
        self.queue.push_preempted(seq)
        self.requests.num_preemptions[seq.row] += 1
        self.recorder.count_preemption(committed * self._kept)

    def _release(self, seq: Sequence) -> None:
        self.allocator.free(seq)
        self.asked -= seq.asked_slots
        self.granted -= seq.granted_slots
        self.useful -= min(seq.asked_slots, seq.end)

    def _continue_chunk(self, plan: Plan, seq: Sequence, num_tokens: int, now_ns: int) -> bool:
        """The next chunk of the sequence in prefill. It is the latest, so without memory it preempts itself."""
        asked, granted = seq.asked_slots, seq.granted_slots
        if not self.allocator.extend(seq, seq.computed + num_tokens):
            self._preempt(seq, now_ns)
            return False
        self._account_grant(seq, asked, granted)
        self._add_chunk(plan, seq, num_tokens)
        return True

    def _account_grant(self, seq: Sequence, asked_before: int, granted_before: int) -> None:
        self.asked += seq.asked_slots - asked_before
        self.granted += seq.granted_slots - granted_before
        self.useful += min(seq.asked_slots, seq.end) - min(asked_before, seq.end)

    def _admit(self, plan: Plan, budget: int, now_ns: int) -> None:
        """Admit from the head of the queue until it is empty, or a limit, the budget or the memory says no."""
        queue, allocator = self.queue, self.allocator
        if allocator.whole_batch and self.running:
            # The batch is closed. What the head cannot use even so is external, as it is at every other plan.
            head = queue.head()
            if not allocator.fits(head, head.known, True):
                self._refused = head, head.known
            return
        while len(queue) and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            seq = queue.head()
            num_tokens = min(seq.known, budget)
            if not allocator.admit(seq, num_tokens, bool(self.running)):
                self._refused = seq, num_tokens
                return
            queue.pop(now_ns)
            seq.serial = self._num_admissions
            self._num_admissions += 1
            self.running[seq.serial] = seq
            self._account_grant(seq, 0, 0)
            self._add_chunk(plan, seq, num_tokens)
            budget -= num_tokens

    def _add_chunk(self, plan: Plan, seq: Sequence, num_tokens: int) -> None:
        before = seq.computed
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
        self.recorder.count_recomputed(self._context)

    def _repeat(self, plan: Plan) -> None:
        """How many steps like this one follow before a finish, or a growth that might fail, and when to stop for others."""
        allocator, step = self.allocator, self.step
        num_steps = self._finish.next_step() - step + 1
        growth_tokens = allocator.growth_tokens
        if growth_tokens is not None:
            if not allocator.interchangeable:
                num_steps = min(num_steps, self._growth.next_step() - step)
            else:
                num_steps = min(num_steps, growth_tokens)  # nobody grows twice
                num_units = allocator.num_free_slots() // allocator.growth_slots
                if num_units < self._num_decoding:
                    num_steps = self._growth.steps_within(step, num_steps, num_units)
        plan.max_steps = num_steps
        plan.deadline_ns = self.recorder.row_end_ns
        if not len(self.queue) and len(self.running) < self.limits.max_num_seqs:
            next_arrival_ns = self.queue.next_arrival_ns
            if next_arrival_ns is not None and next_arrival_ns < plan.deadline_ns:
                plan.deadline_ns = next_arrival_ns

    def idle(self, start_ns: int, end_ns: int) -> None:
        """Nothing ran and nobody waited from start to end."""
        self.recorder.idle(start_ns, end_ns, self.allocator.num_free_slots())
        if end_ns >= self.recorder.row_end_ns:
            self.recorder.close_row(end_ns, self._sample(end_ns))

    def finish(self, end_ns: int) -> None:
        """The run is over. INV-8: everything is free, and every request has ended (INV-5)."""
        free_slots = self.allocator.num_free_slots()
        assert free_slots == self.allocator.num_slots, (
            f"INV-8: {free_slots} of {self.allocator.num_slots} slots are free after the last request"
        )
        totals = (self.live, self.useful, self.asked, self.granted, self._context, self._num_decoding)
        assert not any(totals), f"INV-8: totals {totals} are left after the last request"
        unfinished = [row for row in self.requests.accepted if self.requests.finished_ns[row] < 0]
        assert not unfinished, f"INV-5: requests {unfinished[:5]} of {len(unfinished)} never ended"
        self.recorder.finish(end_ns, self._sample(end_ns))

    def check(self) -> None:
        """Recount the totals and the pool from the sequences."""
        running = list(self.running.values())
        self.allocator.check([*running, *self.held])
        live = sum(seq.committed(self.step) for seq in running) * self._kept
        assert live == self.live, f"INV-1: {live} tokens are committed, the total says {self.live}"
        held = sum(num for seq in [*running, *self.held] for _, num in self.allocator.runs(seq))
        granted = self.granted + self.allocator.pending_slots
        assert held == granted, f"INV-1: sequences hold {held} slots, the total says {granted}"
        decoding = [seq for seq in running if seq.decoding]
        assert len(decoding) == self._num_decoding, f"{len(decoding)} decode, the total says {self._num_decoding}"

    # -- commit -------------------------------------------------------------------------------------------------

    def commit(self, plan: Plan, ends_ns: Seq[int]) -> None:
        """The planned step, and its repetitions, have ended at `ends_ns`."""
        num_steps, end_ns = len(ends_ns), ends_ns[-1]
        assert plan.start_ns <= ends_ns[0], f"INV-4: a step of {plan.start_ns} ns ended at {ends_ns[0]} ns"
        duration_ns = end_ns - plan.start_ns
        num_decoding, last_step = self._num_decoding, self.step + num_steps - 1
        self._record(plan, ends_ns, duration_ns)
        if num_decoding:
            last_ns = duration_ns if num_steps == 1 else end_ns - ends_ns[-2]
            self.recorder.gaps.add_steps(plan.start_ns, ends_ns, last_ns, num_decoding)
        if end_ns >= self.recorder.row_end_ns:
            self.recorder.close_row(end_ns, self._sample(end_ns))
        self.allocator.end_step()
        self.live += num_decoding * num_steps * self._kept
        self._context += num_decoding * num_steps
        self.step = last_step + 1
        for seq in self._finish.pop(last_step):
            self._growth.remove(seq, last_step + 1)
            self._num_decoding -= 1
            self._context -= seq.end
            self._end(seq, end_ns)
        for seq, num_tokens in plan.chunks:
            seq.computed += num_tokens
            self.live += num_tokens * self._kept
            if seq.computed == seq.known:
                self._start_decoding(seq, end_ns)
        self.moved_slots += plan.moved_slots
        if self.paranoid:
            self.check()

    def _record(self, plan: Plan, ends_ns: Seq[int], duration_ns: int) -> None:
        """Integrals (slots x ns) over the steps, each weighted with the state between its plan and its commit."""
        allocator, num_steps = self.allocator, len(ends_ns)
        pending = allocator.pending_slots  # sources of moves: granted and committed
        free_slots = allocator.num_free_slots()
        external_slots = self._external_slots()
        live = self.live * duration_ns
        useful = (self.useful + pending) * duration_ns
        asked = (self.asked + pending) * duration_ns
        granted = (self.granted + pending) * duration_ns
        free = free_slots * duration_ns
        external = external_slots * duration_ns
        if num_steps > 1:
            # Step i holds i tokens more per sequence; the sum over i of i x duration is n x all - sum of the ends.
            elapsed = sum(ends_ns) - num_steps * plan.start_ns
            live += self._num_decoding * (num_steps * duration_ns - elapsed)
            end_ns = ends_ns[-1]
            for i, step in self._growth.steps_after(self.step, num_steps):
                bucket = self._growth.pop(step)
                assert bucket is not None
                if self._log is not None:
                    self._log.step = step
                num_served = allocator.grow(bucket)
                assert num_served == len(bucket), f"{num_served} of {len(bucket)} planned growths were served"
                remaining_ns = end_ns - ends_ns[i - 1]
                tail = self._account_growth(bucket, step)
                grown = allocator.growth_slots * num_served
                useful += (grown - tail) * remaining_ns
                asked += grown * remaining_ns
                granted += grown * remaining_ns
                free_before, free_slots = free_slots, allocator.num_free_slots()
                free += (free_slots - free_before) * remaining_ns
                if self._refused is not None:
                    external_before, external_slots = external_slots, self._external_slots()
                    external += (external_slots - external_before) * remaining_ns
        self.recorder.add(
            duration_ns,
            num_steps,
            live,
            useful,
            asked,
            granted,
            free,
            external,
            len(self.running) * duration_ns,
            plan.num_prefill_tokens,
            plan.num_decode_tokens * num_steps,
        )

    def _external_slots(self) -> int:
        return 0 if self._refused is None else self.allocator.unusable_slots(*self._refused)

    def _sample(self, end_ns: int) -> Sample:
        self.queue.advance(end_ns)
        return self.recorder.sample(len(self.queue), self.allocator, [*self.held, *self.running.values()])

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
        del self.running[seq.serial]
        self.requests.finished_ns[seq.row] = end_ns
        self.live -= seq.end * self._kept
        if self.allocator.whole_batch:
            self.useful -= seq.end  # its slots are still granted, and nothing will be written to them
            self.held.append(seq)
            if self.running:
                return
            for member in self.held:
                self._release(member)
                self.useful += member.end
            self.held.clear()
        else:
            self._release(seq)
