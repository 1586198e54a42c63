"""Who computes how many tokens in the next step (vllm/v1/core/sched/scheduler.py)."""

from __future__ import annotations

from operator import attrgetter

from .block_pool import BlockPool
from .request import Request
from .running import Running
from .scheduled import Admission, Scheduled
from .settings import SchedulerSettings

_serial = attrgetter("serial")


class Scheduler(Running):
    """Running requests in order of admission first, then the queue, within one token budget."""

    def __init__(self, settings: SchedulerSettings, pool: BlockPool) -> None:
        super().__init__(settings, pool)
        self._num_admissions = 0
        self._fcfs = settings.policy != "priority"

    def add(self, request: Request) -> None:
        """A request has arrived."""
        self.waiting.add(request)

    def schedule(self) -> Scheduled:
        """Decide the next step. What it computes counts as computed from then on."""
        settings, scheduled = self.settings, Scheduled(self.step)
        threshold, num_requests = 0, len(self.running) + len(self.waiting)
        if num_requests > 1 and settings.long_prefill_token_threshold:
            threshold = settings.long_prefill_token_threshold
            if settings.long_prefill_token_threshold_adaptive:
                threshold = max(threshold, settings.max_num_batched_tokens // num_requests)
        budget = self._schedule_running(scheduled, threshold)
        if not scheduled.preempted and self.waiting:
            budget = self._admit(scheduled, budget, threshold)
        scheduled.num_tokens = settings.max_num_batched_tokens - budget
        self.step += 1
        for request, num_tokens in scheduled.chunks:
            request.computed += num_tokens
            request.in_flight += num_tokens
            gets_token = request.computed >= request.known + request.placeholders
            scheduled.gets_token.append(gets_token)
            if gets_token and self._async:
                request.placeholders += 1
        return scheduled

    def batch(self, scheduled: Scheduled) -> list[tuple[Request, int]]:
        """Everybody who computes in this step, in order, with the number of tokens. Before the next schedule."""
        chunks = {id(request): num_tokens for request, num_tokens in scheduled.chunks}
        left_out = set(map(id, scheduled.left_out))
        return [
            (request, chunks.get(id(request), 1))
            for request in self.running.values()
            if id(request) in chunks or (request.decodes and id(request) not in left_out)
        ]

    def _schedule_running(self, scheduled: Scheduled, threshold: int) -> int:
        """Tokens for those who run. Returns the budget that is left."""
        step, budget = self.step, self.settings.max_num_batched_tokens
        visits = [
            request
            for serial, request in self._visits.pop(step, ())
            if request.serial == serial and request.decodes and request.wake_step == step
        ]
        wanted = self.num_decoding
        for request in self._prefilling.values():
            missing = request.known + request.placeholders - request.computed
            wanted += missing if not threshold or missing < threshold else threshold
        everybody = wanted > budget
        if everybody:
            visits = list(self.running.values())
        else:
            budget -= self.num_decoding - len(visits)  # the others take their token unseen
            visits += self._prefilling.values()
            visits.sort(key=_serial)
        for number, request in enumerate(visits):
            if not request.running:  # preempted in this step
                continue
            if budget <= 0:
                self._leave_out(scheduled, visits[number:])
                break
            if request.decodes:
                if request.wake_step != step:
                    budget -= 1
                    continue
                self.settle(request)
                num_tokens = 1
            else:
                num_tokens = self._num_wanted(request, threshold, budget)
                if not num_tokens:
                    continue
            while not self.cache.extend(request, num_tokens):
                victim = self._victim()
                budget += self._preempt(scheduled, victim, request, everybody)
                if victim is request:
                    break
            if not request.running:
                behind = [other for other in self.running.values() if other.serial > request.serial]
                if not everybody:  # they had their token in advance
                    budget += sum(other.decodes and other.wake_step != step for other in behind)
                self._leave_out(scheduled, behind)
                break
            budget -= num_tokens
            if request.decodes:
                self._sleep(request, request.computed + 1)
            else:
                scheduled.chunks.append((request, num_tokens))
        return budget

    def _num_wanted(self, request: Request, threshold: int, budget: int) -> int:
        """Tokens for a running request that does not decode."""
        computed, placeholders = request.computed, request.placeholders
        if (
            placeholders
            and computed + 2 - placeholders >= request.num_prompt_tokens + request.max_tokens
        ):
            return 0  # what is under way brings its last token
        wanted = request.known + placeholders - computed
        if threshold and wanted > threshold:
            wanted = threshold
        return min(wanted, budget, self.settings.max_model_len - computed - 1)

    def _victim(self) -> Request:
        running = self.running.values()
        if self._fcfs:
            return next(reversed(running))
        return max(running, key=lambda request: (request.priority, request.rank))

    def _preempt(
        self, scheduled: Scheduled, victim: Request, request: Request, everybody: bool
    ) -> int:
        """Make room for `request`. Returns the tokens that the victim had been given of this step's budget."""
        refund = 0
        if victim.decodes:
            scheduled.stopped_decoding.append(victim)
            # Given by its visit, or in advance; if everybody is visited, by its visit alone.
            refund = victim.serial < request.serial if everybody else victim.wake_step != self.step
        elif not self._fcfs:
            for number, (other, num_tokens) in enumerate(scheduled.chunks):
                if other is victim:
                    refund = num_tokens
                    del scheduled.chunks[number]
                    break
        self._stop(victim)
        self.cache.free(victim)
        victim.computed = victim.placeholders = 0
        victim.stale = victim.in_flight
        victim.preempted = True
        self.waiting.put_back(victim)
        scheduled.preempted.append(victim)
        return int(refund)

    def _leave_out(self, scheduled: Scheduled, requests: list[Request]) -> None:
        """The budget did not reach these: all that decoding ones have before them happens a step later."""
        for request in requests:
            if request.running and request.decodes:
                scheduled.left_out.append(request)
                request.offset -= 1
                self.sum_offsets -= 1
                self._wake(request, request.wake_step + 1)
                self._finish(request, request.finish_step + 1)

    def _admit(self, scheduled: Scheduled, budget: int, threshold: int) -> int:
        """Tokens for those who wait, from the head of the queue on. Returns the budget that is left."""
        settings, waiting, running = self.settings, self.waiting, self.running
        while budget > 0 and waiting and len(running) < settings.max_active:
            request = waiting.head()
            assert not request.stale, f"request {request.row} has {request.stale} tokens in flight"
            hit = self.cache.find(request)
            num_tokens = request.known - hit.num_tokens
            if threshold and num_tokens > threshold:
                num_tokens = threshold
            if num_tokens > budget:
                if not settings.enable_chunked_prefill:
                    break
                num_tokens = budget
            request.boundary = hit.boundary
            if not self.cache.admit(request, hit, num_tokens, bool(running)):
                scheduled.refused = request
                break
            waiting.pop()
            scheduled.admitted.append(Admission(request, request.preempted, hit.num_tokens))
            request.serial = self._num_admissions
            self._num_admissions += 1
            request.running, request.preempted = True, False
            request.computed = hit.num_tokens
            running[request.serial] = self._prefilling[request.serial] = request
            scheduled.chunks.append((request, num_tokens))
            budget -= num_tokens
        return budget

    def update(self, scheduled: Scheduled) -> list[Request]:
        """The step of this schedule has been computed. Returns who has ended, in order."""
        step = scheduled.step
        ended = [
            request
            for serial, request in self._finishes.pop(step, ())
            if request.serial == serial and request.decodes and request.finish_step == step
        ]
        for (request, num_tokens), gets_token in zip(
            scheduled.chunks, scheduled.gets_token, strict=True
        ):
            request.in_flight -= num_tokens
            is_stale = request.stale > 0
            if is_stale:
                request.stale -= num_tokens
            if request.ended or not gets_token:
                continue
            request.known += 1
            if self._async:
                if not is_stale:
                    request.placeholders -= 1
                if request.running and self._caches:
                    self.cache.store(request, request.computed - request.placeholders)
            if request.known == request.end_tokens:
                ended.append(request)
            elif not self._async:
                self._decode(request)
        if not self._async:  # in the order of the batch; with asynchronous scheduling they are
            ended.sort(key=_serial)
        for request in ended:
            self.end(request)
        return ended
