"""What the next step does: growth, preemption, prefill chunks, admissions, and how far to go on unattended.

Running sequences are never visited one by one. They wait in two calendars, by the step at which their room is used
up and by the step at which they finish, and totals are kept for everything the cost model and the recorder need.
"""

from __future__ import annotations

from .calendar import FinishCalendar, GrowthCalendar
from .closed_loop import queue_of
from .decisions import Decisions
from .horizon import up_to, up_to_next_finish
from .ledger import BATCH, MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, MEMORY, Ledger
from .plan import UNLIMITED, Limits, Plan
from .policies.base import Allocator
from .queue import sequence_of
from .recorder import Recorder
from .requests import RequestTable
from .sequence import Sequence


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
        self.queue = queue_of(requests, sequence_of)
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
        self._chunking: Sequence | None = None  # the one whose prefill is incomplete
        self._growth = GrowthCalendar(allocator.growth_tokens or 1, allocator.growth_slots)
        self._finish = FinishCalendar()
        self._num_admissions = 0
        self._num_decoding = 0
        self._context = 0  # committed tokens of the decoding sequences
        # The head of the queue was turned away, and nothing that could change this has happened since.
        self._blocked = False
        self._waits_for: str | None = None  # what for
        # Nor will this step's chunks change it: the budget that they use up was not the reason.
        self._refusal_stands = False
        # That head and the tokens it asked room for, if it was turned away for memory.
        self._refused: tuple[Sequence, int] | None = None
        # Of limits and allocator, looked up once: these are read in every step.
        self._max_num_seqs = limits.max_num_seqs
        self._kept = int(allocator.keeps_kv)
        self._reuses_prefixes = allocator.reuses_prefixes
        self._chunked = allocator.chunked_prefill
        self._whole_batch = allocator.whole_batch
        self._growth_tokens = allocator.growth_tokens
        self._growth_slots = allocator.growth_slots
        # Growths of further steps are served together, at the commit: units are interchangeable, and no log shows it.
        self._ahead = (
            allocator.interchangeable and allocator.growth_tokens is not None and log is None
        )

    def plan(self, now_ns: int) -> Plan | None:
        """The next step, perhaps with more behind it, with its memory; None if nothing runs and nobody waits."""
        num_waiting = self.queue.advance(now_ns)
        if not num_waiting and not self.running:
            return None
        allocator, ledger = self.allocator, self.ledger
        if self._log is not None:
            self._log.step = self.step
        growers = self._growth.due(self.step)
        preempted = bool(growers) and self._grow_due(growers, now_ns)
        plan = Plan(now_ns, self._num_decoding, self._context + self._num_decoding)
        if allocator.moved_slots:
            self._blocked = False  # free runs have changed
        waits = num_waiting > 0 or preempted
        if self._chunking is not None or (num_waiting and not (self._blocked or preempted)):
            preempted |= self._prefill(plan, preempted, now_ns)
            waits = self._blocked or preempted
        if preempted:
            self._foresee_refusal(plan)
            self._waits_for = MEMORY
        waits_for = self._waits_for if waits else None
        if waits_for is not ledger.waits_for:
            ledger.wait_for(waits_for, now_ns)
        external_slots = 0 if self._refused is None else allocator.unusable_slots(*self._refused)
        if self._reuses_prefixes:
            ledger.set_cached(allocator.num_cached_slots(), now_ns)
        ledger.set_free(allocator.num_free_slots(), external_slots, now_ns)
        if allocator.moved_slots:
            plan.moved_slots = allocator.moved_slots
            # Sources of moves stay granted until the step commits.
            pending = allocator.pending_slots
            ledger.change(pending, pending, pending, now_ns)
        elif not self._kept:
            decoding = (seq for seq in self.running.values() if seq.decoding)
            plan.recompute(seq.committed(self.step) + 1 for seq in decoding)
            ledger.recomputed_tokens += self._context
        elif not preempted or self._blocked:
            self._look_ahead(plan, waits)
        return plan

    def _grow_due(self, growers: list[Sequence], now_ns: int) -> bool:
        """Room for every sequence that has used up its own; True if that took a preemption."""
        allocator, preempted = self.allocator, False
        num_served = allocator.grow(growers)
        while num_served < len(growers):
            preempted = True
            refused, victim = growers[num_served], next(reversed(self.running.values()))
            self._preempt(victim, now_ns)  # takes it from the growers, too
            if victim is not refused:
                num_served += allocator.grow(growers[num_served:])
        self.ledger.grow(self._growth_slots * num_served, self._growth.pop_tail(self.step), now_ns)
        return preempted

    def _foresee_refusal(self, plan: Plan) -> None:
        """Nobody is admitted in a step that preempts. If the next one will turn the head away too, say so already.

        Then the steps behind this one need no decision: growths, all that happens in between, leave no more room.
        """
        allocator, head, budget = self.allocator, self.queue.head(), self._token_budget()
        undecided = plan.chunks or self._chunking is not None or allocator.moved_slots
        if head is None or undecided or self._whole_batch or not self.running or budget <= 0:
            return
        refused = head, self._first_tokens(head, budget)
        # This step has nothing external, so the steps behind it must not have any either.
        if not allocator.fits(*refused, True) and not allocator.unusable_slots(*refused):
            self._blocked, self._refused = True, refused

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

    def _token_budget(self) -> int:
        """Prompt tokens that a step may compute beside its decodes."""
        most_tokens = self.limits.max_num_batched_tokens
        return most_tokens - self._num_decoding if self._chunked else UNLIMITED

    def _prefill(self, plan: Plan, preempted: bool, now_ns: int) -> bool:
        """Chunks for the budget that decodes leave: the prompt in progress, then the queue. True after a preemption."""
        budget, seq = self._token_budget(), self._chunking
        if seq is not None and budget:
            num_tokens = min(seq.known - seq.computed, budget)
            asked, granted, before, end = seq.asked_slots, seq.granted_slots, seq.computed, seq.end
            if not self.allocator.extend(seq, before + num_tokens):
                # It is the latest, so without memory it preempts itself.
                self._preempt(seq, now_ns)
                return True
            self.ledger.change(
                min(seq.asked_slots, end) - min(asked, end),
                seq.asked_slots - asked,
                seq.granted_slots - granted,
                now_ns,
            )
            plan.add_chunk(seq, num_tokens)
            self._chunking = seq if before + num_tokens < seq.known else None
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
        first_serial = serial = self._num_admissions
        useful_slots = asked_slots = granted_slots = num_hit_tokens = 0
        self._refused = None
        seq = queue.head()
        while seq is not None:
            if self._whole_batch and running and serial == first_serial:
                # The batch is closed. What the head cannot use even so is external, as it is at every other plan.
                if not allocator.fits(seq, seq.known, True):
                    self._refused = seq, seq.known
                break
            if budget <= 0 or len(running) == self._max_num_seqs:
                break
            first_tokens = self._first_tokens(seq, budget)
            if not allocator.admit(seq, first_tokens, bool(running)):
                self._refused = seq, first_tokens
                break
            queue.pop(plan.start_ns)
            seq.serial = serial
            running[serial] = seq
            serial += 1
            num_tokens = first_tokens - seq.computed
            plan.add_chunk(seq, num_tokens)
            budget -= num_tokens
            if first_tokens < seq.known:
                self._chunking = seq
            if seq.computed:
                self.requests.num_hit_tokens[seq.row] = seq.computed
                num_hit_tokens += seq.computed
            asked, end = seq.asked_slots, seq.end
            useful_slots += asked if asked < end else end
            asked_slots += asked
            granted_slots += seq.granted_slots
            seq = queue.head()
        self._blocked = seq is not None
        if seq is not None:
            is_full, refused = len(running) == self._max_num_seqs, self._refused
            limit = MAX_NUM_SEQS if is_full else MAX_NUM_BATCHED_TOKENS
            self._waits_for = limit if refused is None else MEMORY
            if self._whole_batch and serial == first_serial:
                self._waits_for = BATCH
            # With the whole prompt asked for, or the number of sequences at its limit, a larger budget is of no use.
            self._refusal_stands = not self._whole_batch and (
                is_full or (refused is not None and refused[1] == seq.known)
            )
        if serial > first_serial:
            now_ns, ledger = plan.start_ns, self.ledger
            self._num_admissions = serial
            ledger.change(useful_slots, asked_slots, granted_slots, now_ns)
            ledger.enter(serial - first_serial, now_ns)
            ledger.note_running()
            if num_hit_tokens:
                ledger.commit(num_hit_tokens, now_ns)
            if seq is None and queue.all_admitted:
                self.recorder.end_loaded_window(ledger.totals(now_ns, self.step))

    def _first_tokens(self, seq: Sequence, budget: int) -> int:
        """Tokens of `seq` in the pool when a step that admits it ends: its prefix hit, and what is computed."""
        if self._reuses_prefixes:
            seq.computed = self.allocator.num_hit_tokens(seq)
        known, within_budget = seq.known, seq.computed + budget
        return known if known < within_budget else within_budget

    def _look_ahead(self, plan: Plan, waits: bool) -> None:
        """How many steps can follow before something has to be decided."""
        growth_tokens, ledger = self._growth_tokens, self.ledger
        plan.deadline_ns = self.recorder.row_end_ns
        if not waits and self.queue.next_arrival_ns < plan.deadline_ns:
            plan.deadline_ns = self.queue.next_arrival_ns
        # A watermark that growths eat into makes their order in time matter.
        ahead = self._ahead and not ledger.external
        num_units = ledger.free // self._growth_slots if ahead else 0
        chunks, behind = plan.chunks, self.step + 1
        if not chunks:
            num_more = self._finish.next_step() - self.step
            if num_more and growth_tokens is not None:
                # Each grows once in a round of `growth_tokens` steps.
                num_rounds = (num_more - 1) // growth_tokens + 1
                if not ahead:
                    num_more = min(num_more, self._growth.next_step(behind) - behind)
                elif num_units < self._num_decoding * num_rounds:
                    num_more = self._growth.steps_within(behind, num_more, num_units)
            plan.max_steps = 1 + num_more
        if not ahead or self._chunking is not None:
            return
        context = self._context + self._num_decoding * plan.max_steps
        if not waits:
            assert growth_tokens is not None
            num_rounds = num_units // len(self.running)
            if num_rounds:
                plan.more = up_to(
                    self._finish,
                    chunks,
                    self.step + plan.max_steps,
                    self._num_decoding,
                    context,
                    self.step + num_rounds * growth_tokens,
                    self.queue.awaited,
                )
        elif chunks and self._blocked and self._refusal_stands:
            plan.more = up_to_next_finish(
                self._finish, self._growth, chunks, behind, self._num_decoding, context, num_units
            )
