"""An engine that plans one step at a time and looks at every sequence in each.

It keeps plain counters for each sequence and recounts every total from them in every step. There is
nothing in it to get wrong but the rules themselves, and nothing that makes it fast.
`kvtwin.sim.engine` must agree with it, byte for byte.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from naive_places import TokenPlaces, tokens_of
from naive_queue import NaiveQueue

from kvtwin.sim import Allocator, Sequence
from kvtwin.sim.decisions import Decisions
from kvtwin.sim.ledger import FIELDS, WAIT_REASONS
from kvtwin.sim.plan import Limits, Plan
from kvtwin.sim.queue import WaitingQueue, sequence_of
from kvtwin.sim.recorder import Recorder, Sample
from kvtwin.sim.requests import RequestTable


@dataclass(eq=False)
class Tally:
    """Counters of one admission of a sequence."""

    seq: Sequence
    committed: int = 0  # tokens whose KV is computed
    room: int = 0  # tokens that fit into what was granted
    asked: int = 0  # slots
    granted: int = 0  # slots

    @property
    def decoding(self) -> bool:
        return self.committed >= self.seq.known

    def read_grant(self) -> None:
        """The memory fields are exact behind `admit` and `extend`."""
        self.room, self.asked = self.seq.room, self.seq.asked_slots
        self.granted = self.seq.granted_slots


class NaiveEngine:
    """Same interface as `kvtwin.sim.engine.Engine`."""

    def __init__(
        self,
        requests: RequestTable,
        allocator: Allocator,
        limits: Limits,
        recorder: Recorder,
        log: Decisions | None = None,
    ) -> None:
        self.requests = requests
        queue_type = WaitingQueue if requests.waits is None else NaiveQueue
        self.queue = queue_type(requests, sequence_of)
        self.paranoid = False
        self.moved_slots = self.recomputed_tokens = self.most_running = 0
        self.least_free_slots = allocator.num_free_slots()
        self._allocator = allocator
        self._limits = limits
        self._recorder = recorder
        self._log = allocator.log = log
        self._running: list[Tally] = []  # in order of admission
        self._held: list[Tally] = []  # finished members of a static batch
        self._decoders: list[Tally] = []  # those that gain a token in the planned step
        self._chunks: list[tuple[Tally, int]] = []
        self._num_generated = dict.fromkeys(requests.accepted, 0)
        self._last_token_ns: dict[int, int] = {}
        self._preempted_now = False
        self._waits_for = ""  # one of WAIT_REASONS, if anybody waits
        self._state: dict[str, int] = {}  # of the pool, between plan and commit
        self._totals = dict.fromkeys(FIELDS, 0)
        self._places = TokenPlaces(limits.max_num_seqs) if allocator.reuses_prefixes else None

    def plan(self, now_ns: int) -> Plan | None:
        num_waiting = self.queue.advance(now_ns)
        if not self._running and not num_waiting:
            return None
        if self._log is not None:
            self._log.step = self._totals["num_steps"]
        self._preempted_now = False
        self._chunks = []
        for tally in list(self._running):
            if tally.decoding and tally.committed == tally.room and tally in self._running:
                self._grow(tally)
        budget = self._limits.max_num_batched_tokens - sum(t.decoding for t in self._running)
        for tally in list(self._running):
            if not tally.decoding:
                budget -= self._continue_prefill(tally, budget)
        refused = None if self._preempted_now else self._admit(budget)
        # A lone sequence may have preempted itself; nothing runs in this step then.
        assert self._running or self._preempted_now, f"INV-5: nothing runs, {num_waiting} wait"
        external = self._allocator.unusable_slots(*refused) if refused else 0
        self._waits_for = self._why_nobody_else(refused is not None)
        self.most_running = max(self.most_running, len(self._running))
        self._decoders = [tally for tally in self._running if tally.decoding]
        self._state = self._count(external)
        not_held = self._state["free"] + self._state["cached"]
        self.least_free_slots = min(self.least_free_slots, not_held)
        if self.paranoid:
            self._allocator.check([tally.seq for tally in self._held + self._running])
        return self._describe(now_ns)

    def _grow(self, tally: Tally) -> None:
        while self._allocator.grow([tally.seq]) == 0:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is tally:
                return
        tally.room += self._allocator.growth_tokens
        tally.asked += self._allocator.growth_slots
        tally.granted += self._allocator.growth_slots

    def _preempt(self, tally: Tally) -> None:
        seq = tally.seq
        self._running.remove(tally)
        self._allocator.free(seq)
        if self._allocator.keeps_kv:
            self.recomputed_tokens += tally.committed
        seq.known = seq.num_prompt_tokens + self._num_generated[seq.row]
        self.queue.push_preempted(seq)
        self.requests.num_preemptions[seq.row] += 1
        self._totals["num_preemptions"] += 1
        self._preempted_now = True

    def _continue_prefill(self, tally: Tally, budget: int) -> int:
        """Tokens of the next chunk of a prompt in progress; 0 if its memory was refused."""
        num_tokens = min(tally.seq.known - tally.committed, budget)
        if not self._allocator.extend(tally.seq, tally.committed + num_tokens):
            self._preempt(tally)
            return 0
        tally.read_grant()
        self._chunks.append((tally, num_tokens))
        return num_tokens

    def _admit(self, budget: int) -> tuple[Sequence, int] | None:
        """Returns the head and its tokens if it was refused for memory."""
        allocator = self._allocator
        if allocator.whole_batch and self._running:
            head = self.queue.head()
            if head is not None and not allocator.fits(head, head.known, True):
                return head, head.known
            return None
        while len(self._running) < self._limits.max_num_seqs:
            if allocator.chunked_prefill and budget <= 0:
                break
            seq = self.queue.head()
            if seq is None:
                break
            tokens, hit, place = [], 0, 0
            if self._places is not None:
                tokens = tokens_of(self.requests.prompts[seq.row], seq.row, seq.num_prompt_tokens)
                place, hit = self._places.find(tokens)
            num_tokens = seq.known - hit
            if allocator.chunked_prefill:
                num_tokens = min(num_tokens, budget)
            if not allocator.admit(seq, hit + num_tokens, bool(self._running)):
                return seq, hit + num_tokens
            self.queue.pop(self._now_ns)
            tally = Tally(seq, committed=hit)
            tally.read_grant()
            if self._places is not None:
                assert seq.blocks == [place * seq.granted_slots], f"{seq.blocks} is not {place}"
                self._places.take(place, seq.row, tokens)
                self.requests.num_hit_tokens[seq.row] = hit
            self._running.append(tally)
            self._chunks.append((tally, num_tokens))
            budget -= num_tokens
            if self.queue.all_admitted and self.queue.head() is None:
                self._recorder.end_loaded_window(tuple(self._totals.values()))
        return None

    def _why_nobody_else(self, refused: bool) -> str:
        """Why the head of the queue is not in this step; empty if there is none."""
        if self.queue.head() is None:
            return ""
        if self._allocator.whole_batch and not self._chunks:
            return "batch"
        if self._preempted_now or refused:
            return "memory"
        is_full = len(self._running) == self._limits.max_num_seqs
        return "max_num_seqs" if is_full else "max_num_batched_tokens"

    @property
    def _now_ns(self) -> int:
        """All time up to the last commit has been counted, and plans follow at once."""
        return self._totals["duration_ns"]

    def _count(self, external: int) -> dict[str, int]:
        """Where the pool is between plan and commit."""
        running, pending = self._running, self._allocator.pending_slots
        return {
            "live": sum(tally.committed for tally in running) * self._allocator.keeps_kv,
            "useful": sum(min(tally.asked, tally.seq.end) for tally in running) + pending,
            "asked": sum(tally.asked for tally in running + self._held) + pending,
            "granted": sum(tally.granted for tally in running + self._held) + pending,
            "free": self._allocator.num_free_slots(),
            "external": external,
            "cached": self._places.num_cached_tokens() if self._places is not None else 0,
            "running": len(running),
            **{f"waits_for_{reason}": int(reason == self._waits_for) for reason in WAIT_REASONS},
        }

    def _describe(self, now_ns: int) -> Plan:
        assert now_ns == self._now_ns, f"planned at {now_ns} ns, counted up to {self._now_ns} ns"
        plan = Plan(
            now_ns, len(self._decoders), sum(tally.committed + 1 for tally in self._decoders)
        )
        plan.chunks = [(tally.seq, num_tokens) for tally, num_tokens in self._chunks]
        plan.moved_slots = self._allocator.moved_slots
        # The query at position p (from 0) meets p + 1 keys.
        for tally, num_tokens in self._chunks:
            plan.num_prefill_tokens += num_tokens
            plan.prefill_context_slots += tally.committed + num_tokens
            plan.prefill_pairs += sum(range(tally.committed + 1, tally.committed + num_tokens + 1))
        if not self._allocator.keeps_kv:
            plan.num_decode_tokens = plan.decode_context_slots = plan.prefill_context_slots = 0
            for tally in self._decoders:
                known = tally.committed + 1
                plan.num_prefill_tokens += known
                plan.prefill_pairs += sum(range(1, known + 1))
        return plan

    def commit(self, plan: Plan, ends_ns: Seq[int]) -> None:
        (end_ns,) = ends_ns
        if not self._allocator.keeps_kv:
            self.recomputed_tokens += sum(tally.committed for tally in self._decoders)
        self._pass_time(plan.start_ns, end_ns)
        self._totals["num_steps"] += 1
        self._totals["num_prefill_tokens"] += plan.num_prefill_tokens
        self._totals["num_decode_tokens"] += plan.num_decode_tokens
        self._close_row(end_ns)
        if plan.moved_slots:
            self.moved_slots += plan.moved_slots
            self._allocator.end_step()
        for tally, num_tokens in [(tally, 1) for tally in self._decoders] + self._chunks:
            tally.committed += num_tokens
            if tally.committed >= tally.seq.known:
                self._take_token(tally, end_ns)

    def _take_token(self, tally: Tally, end_ns: int) -> None:
        """A token has come out, perhaps the last one."""
        row = tally.seq.row
        if row in self._last_token_ns:
            self._recorder.gaps.add((self._last_token_ns[row], end_ns), 1)
        else:
            self.requests.first_token_ns[row] = end_ns
        self._last_token_ns[row] = end_ns
        self._num_generated[row] += 1
        if self._num_generated[row] < tally.seq.num_output_tokens:
            return
        assert tally.committed == tally.seq.end, (
            f"request {row} ends with {tally.committed} committed"
        )
        self.requests.finished_ns[row] = end_ns
        self._running.remove(tally)
        self._held.append(tally)
        if not (self._allocator.whole_batch and self._running):
            for member in self._held:
                self._allocator.free(member.seq)
                if self._places is not None:
                    self._places.leave(member.seq.row)
            self._held.clear()

    def _pass_time(self, start_ns: int, end_ns: int) -> None:
        duration_ns = end_ns - start_ns
        assert duration_ns >= 0, f"from {start_ns} to {end_ns} ns"
        self._totals["duration_ns"] += duration_ns
        for name, value in self._state.items():
            self._totals[name] += value * duration_ns

    def _close_row(self, end_ns: int) -> None:
        if end_ns >= self._recorder.row_end_ns:
            self._recorder.close_row(tuple(self._totals.values()), self._sample(end_ns))

    def idle(self, start_ns: int, end_ns: int) -> None:
        self._state = self._count(external=0)
        self._pass_time(start_ns, end_ns)
        self._totals["idle"] += end_ns - start_ns
        self._close_row(end_ns)

    def details(self) -> dict[str, Any]:
        return {}

    def finish(self, end_ns: int) -> None:
        assert not self._running, f"{len(self._running)} still run"
        cached = self._count(external=0)["cached"]
        assert self._allocator.num_free_slots() + cached == self._allocator.num_slots, "INV-8"
        self._recorder.finish(tuple(self._totals.values()), self._sample(end_ns))

    def _sample(self, end_ns: int) -> Sample:
        allocator, pieces = self._allocator, []
        if self._recorder.snapshots:
            for tally in self._held + self._running:
                pieces += [(first, num, tally.seq.row) for first, num in allocator.runs(tally.seq)]
        num_waiting = self.queue.advance(end_ns)
        largest = max((num for _, num in allocator.free_runs()), default=0)
        return Sample(num_waiting, largest, allocator.num_free_slots(), tuple(pieces))
