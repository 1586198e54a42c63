"""The engine of the V1 policies: the scheduler on a clock, with the recorder's books."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq
from typing import Any

from ..decisions import Decisions
from ..engine_contract import Work
from ..ledger import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS, MEMORY, Ledger
from ..plan import Limits, Plan
from ..recorder import Recorder, Sample
from ..requests import RequestTable
from ..sequence import NEVER
from ..summary import parts_of
from .accounts import Accounts, TracedRequest
from .arrivals import Arrivals
from .block_pool import NULL_BLOCK
from .policy import VllmV1
from .request import Request
from .scheduled import Scheduled
from .scheduler import Scheduler
from .start import scheduler_settings


class V1Engine:
    """`plan` decides what the next step does, `commit` applies what it did.

    With asynchronous scheduling a plan is made before the tokens of the step that has just ended are looked at: what
    it finishes and frees is there for the plan after that.
    """

    moved_slots = 0

    def __init__(
        self,
        requests: RequestTable,
        policy: VllmV1,
        limits: Limits,
        recorder: Recorder,
        log: Decisions | None = None,
    ) -> None:
        self.requests, self.policy, self.recorder = requests, policy, recorder
        settings = scheduler_settings(policy, limits)
        self.scheduler = Scheduler(settings, policy.pool)
        self._arrivals = Arrivals(requests, settings.max_model_len)
        self.queue = self._arrivals.queue
        self.ledger = Ledger(policy.num_free_slots())
        self.step = 0
        self.paranoid = False
        self.refused_row: int | None = None
        groups = policy.settings.groups
        self._accounts = Accounts(self.ledger, policy.pool, settings.block_size, groups, log)
        self._token_slots = sum(groups.token_slots)  # of a token in all groups together
        self.scheduler.cache.listen(self._accounts)
        self._log = policy.log = log
        self._async = settings.async_scheduling
        self._under_way: deque[Scheduled] = deque()  # not processed yet
        # Decoding requests that the budget did not reach, with the time of their last token.
        self._late: dict[Request, int] = {}
        self._watermark_blocks = settings.watermark_blocks

    def plan(self, now_ns: int) -> Plan | None:
        """The next step, with its memory; None if nothing runs and nobody waits."""
        scheduler = self.scheduler
        if self._log is not None:
            self._log.step = self.step
        for request in self._arrivals.arrived(now_ns):
            scheduler.add(request)
        num_empty = 0
        while scheduler.running or scheduler.waiting:
            scheduled = scheduler.schedule()
            plan = self._describe(scheduled, now_ns)
            if self._under_way:
                self._process(now_ns)
            self._set_unheld(now_ns)
            if scheduled.num_tokens:
                self._under_way.append(scheduled)
                if self.paranoid:
                    self.check()
                return plan
            # Nothing but a preemption, or everybody waits for a token under way. Neither takes time.
            num_empty += 1
            assert num_empty <= 2, (
                f"INV-5: nothing can run at {now_ns} ns, {len(scheduler.running)} run and "
                f"{len(scheduler.waiting)} wait"
            )
        return None

    def _describe(self, scheduled: Scheduled, now_ns: int) -> Plan:
        """The schedule as a plan; its decisions go into the books."""
        ledger, requests = self.ledger, self.requests
        for request in scheduled.preempted:
            assert isinstance(request, TracedRequest)
            requests.num_preemptions[request.row] += 1
            ledger.num_preemptions += 1
        for request in scheduled.stopped_decoding:
            assert isinstance(request, TracedRequest)
            request.last_token_ns = self._late.pop(request, now_ns)
        for request in scheduled.left_out:
            self._late.setdefault(request, now_ns)
        for request, resumed, num_hit_tokens in scheduled.admitted:
            assert isinstance(request, TracedRequest)
            request.prefill_tokens = request.known
            if resumed:
                ledger.recomputed_tokens += max(0, request.lost - num_hit_tokens)
            else:
                requests.admitted_ns[request.row] = now_ns
                requests.num_hit_tokens[request.row] = num_hit_tokens
        self._accounts.settle(now_ns)
        ledger.enter(len(scheduled.admitted) - len(scheduled.preempted), now_ns)
        ledger.note_running()
        if scheduled.admitted and self.queue.all_admitted and not self.scheduler.waiting:
            self.recorder.end_loaded_window(ledger.totals(now_ns, self.step))
        refused = scheduled.refused
        self.refused_row = None if refused is None else refused.row
        self._note_wait(scheduled, now_ns)
        return self._plan_of(scheduled, now_ns)

    def _note_wait(self, scheduled: Scheduled, now_ns: int) -> None:
        """What the head of the queue waits for, if there is one."""
        scheduler, waits_for = self.scheduler, None
        if scheduled.preempted or scheduled.refused is not None:
            waits_for = MEMORY
        elif scheduler.waiting:
            is_full = len(scheduler.running) == scheduler.settings.max_active
            waits_for = MAX_NUM_SEQS if is_full else MAX_NUM_BATCHED_TOKENS
        if waits_for is not self.ledger.waits_for:
            self.ledger.wait_for(waits_for, now_ns)

    def _plan_of(self, scheduled: Scheduled, now_ns: int) -> Plan:
        scheduler = self.scheduler
        num_decoding = scheduler.num_decoding - len(scheduled.left_out)
        context = scheduler.sum_offsets + scheduler.num_decoding * scheduled.step
        for request in scheduled.left_out:
            context -= request.offset + scheduled.step
        plan = Plan(now_ns, num_decoding, context + num_decoding)
        for request, num_tokens in scheduled.chunks:
            assert isinstance(request, TracedRequest)
            before = request.computed - num_tokens
            if before >= request.prefill_tokens:
                plan.num_decode_tokens += 1
                plan.decode_context_slots += request.computed
            else:
                plan.count_chunk(before, num_tokens)
        return plan

    def _set_unheld(self, now_ns: int) -> None:
        policy, external_slots = self.policy, 0
        free_slots = policy.num_free_slots()
        if self.refused_row is not None and self.scheduler.running:
            external_slots = min(free_slots, self._watermark_blocks * policy.block_slots)
        self.ledger.set_cached(policy.num_cached_slots(), now_ns)
        self.ledger.set_free(free_slots, external_slots, now_ns)

    def work(self, plan: Plan) -> list[Work]:
        """What the planned step computes, in the order of the batch."""
        scheduled = self._under_way[-1]
        return [
            Work(
                request,
                scheduled.step + request.offset
                if request.decodes
                else request.computed - num_tokens,
                num_tokens,
            )
            for request, num_tokens in self.scheduler.batch(scheduled)
        ]

    def holders(self) -> list[Request]:
        """Whoever runs holds blocks."""
        return list(self.scheduler.running.values())

    def parts(self) -> dict[str, int]:
        """Slots of each part as the recorder counts them from the latest plan to its commit."""
        return parts_of(self.ledger.per_ns())

    def commit(self, plan: Plan, ends_ns: Seq[int]) -> None:
        """The planned step has ended."""
        (end_ns,) = ends_ns
        assert plan.start_ns <= end_ns, f"INV-4: a step of {plan.start_ns} ns ended at {end_ns} ns"
        ledger, scheduled, late = self.ledger, self._under_way[-1], self._late
        ledger.num_prefill_tokens += plan.num_prefill_tokens
        ledger.num_decode_tokens += plan.num_decode_tokens
        ledger.commit(scheduled.num_tokens * self._token_slots, end_ns)
        num_decoding = self.scheduler.num_decoding - len(scheduled.left_out)
        if late:
            for request in set(late).difference(scheduled.left_out):
                self.recorder.gaps.add_one(end_ns - late.pop(request), 1)
                num_decoding -= 1
        if num_decoding:
            self.recorder.gaps.add_one(end_ns - plan.start_ns, num_decoding)
        self.step += 1
        if end_ns >= self.recorder.row_end_ns:
            self.recorder.close_row(ledger.totals(end_ns, self.step), self._sample(end_ns))
        if not self._async:
            self._process(end_ns)
        if self.paranoid:
            self.check()

    def _process(self, now_ns: int) -> None:
        """Look at the tokens of the oldest step that has ended."""
        scheduled, requests = self._under_way.popleft(), self.requests
        num_running = len(self.scheduler.running)
        for (request, _), gets_token in zip(scheduled.chunks, scheduled.gets_token, strict=True):
            if not gets_token or request.ended:
                continue
            assert isinstance(request, TracedRequest)
            if request.last_token_ns == NEVER:
                requests.first_token_ns[request.row] = now_ns
            else:
                self.recorder.gaps.add_one(now_ns - request.last_token_ns, 1)
            request.last_token_ns = now_ns
        for request in self.scheduler.update(scheduled):
            requests.finished_ns[request.row] = now_ns
            self.queue.finish(request.row, now_ns)
        self._accounts.settle(now_ns)
        self.ledger.enter(len(self.scheduler.running) - num_running, now_ns)

    @property
    def recomputed_tokens(self) -> int:
        """Tokens that a preemption took and that were not found again."""
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
        self._set_unheld(start_ns)
        if end_ns >= self.recorder.row_end_ns:
            self.recorder.close_row(self.ledger.totals(end_ns, self.step), self._sample(end_ns))

    def finish(self, end_ns: int) -> None:
        """The run is over. INV-8: all but the null block is free or cached, and every request has ended (INV-5)."""
        policy, ledger = self.policy, self.ledger
        self._set_unheld(end_ns)
        unheld_slots = policy.num_free_slots() + policy.num_cached_slots()
        assert unheld_slots == policy.largest_grant, (
            f"INV-8: {unheld_slots} of {policy.largest_grant} slots are free or cached after the last request"
        )
        totals = ledger.live, ledger.useful, ledger.asked, ledger.running, len(self._late)
        assert not any(totals), f"INV-8: totals {totals} are left after the last request"
        unfinished = [row for row in self.requests.accepted if self.requests.finished_ns[row] < 0]
        assert not unfinished, f"INV-5: requests {unfinished[:5]} of {len(unfinished)} never ended"
        self.recorder.finish(ledger.totals(end_ns, self.step), self._sample(end_ns))

    def details(self) -> dict[str, Any]:
        """Nothing that other engines would not have."""
        return {}

    def _sample(self, end_ns: int) -> Sample:
        policy = self.policy
        pieces: tuple[tuple[int, int, int], ...] = ()
        if self.recorder.snapshots:
            size = policy.block_slots
            held = {
                first: request.row
                for request in self.holders()
                for first, _ in policy.runs(request)
            }
            pieces = tuple((first, size, row) for first, row in held.items())
        for request in self._arrivals.arrived(end_ns):
            self.scheduler.add(request)
        return Sample(
            len(self.scheduler.waiting),
            policy.largest_free_run(),
            policy.num_free_slots(),
            pieces,
        )

    def check(self) -> None:
        """Recount the pool and the totals from the tables."""
        policy, ledger = self.policy, self.ledger
        running = list(self.scheduler.running.values())
        policy.check(running)
        held = [
            {block for request in running for block in request.tables[group]} - {NULL_BLOCK}
            for group in range(len(policy.settings.groups.windows))
        ]
        asked, granted = policy.slots_of([len(blocks) for blocks in held])
        granted += policy.block_slots  # the null block
        assert (asked, granted) == (ledger.asked, ledger.granted), (
            f"INV-1: tables hold blocks of {granted} slots, {asked} of them asked for; the totals say {ledger.granted} "
            f"and {ledger.asked}"
        )
