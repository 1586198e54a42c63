"""An engine that is watched at every plan, and executors that carry out part of what they may."""

from collections.abc import Sequence as Seq
from typing import Any

from allocators import Memory, slots_by_position

from kvtwin.sim import CostModel
from kvtwin.sim.engine import Engine
from kvtwin.sim.executor import CostExecutor
from kvtwin.sim.plan import Plan


class OneStepExecutor(CostExecutor):
    """Carries out the first step of each plan, whatever else it offers."""

    def execute(self, plan: Plan) -> Seq[int]:
        return super().execute(plan)[:1]


class UnevenExecutor(CostExecutor):
    """Carries out one step more at each plan, and at times all it may."""

    def __init__(self, cost: CostModel) -> None:
        super().__init__(cost)
        self._num_plans = 0

    def execute(self, plan: Plan) -> Seq[int]:
        self._num_plans += 1
        most = self._num_plans % 5 or None
        return super().execute(plan)[:most]


class WatchedEngine(Engine):
    """Counts every computed position, and keeps the tokens themselves. For executors of one step a plan.

    Prefix hits are followed for policies that never preempt.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.memory = Memory(self.allocator.num_slots, dict(enumerate(self.requests.prompts)))
        self.computed = dict.fromkeys(self.requests.accepted, 0)  # since the last preemption
        self._preemptions = list(self.requests.num_preemptions)
        self._num_carried_out = 0
        self._clock_ns = 0

    def plan(self, now_ns: int) -> Plan | None:
        assert now_ns >= self._clock_ns, f"INV-4: from {self._clock_ns} back to {now_ns} ns"
        self._clock_ns = now_ns
        plan = super().plan(now_ns)
        if plan is not None:
            self._watch(plan)
        return plan

    def _watch(self, plan: Plan) -> None:
        log = self.allocator.log
        if log is not None:
            decisions = list(zip(log.actions, log.rows, log.firsts, log.nums, strict=True))
            self.memory.carry_out(decisions[self._num_carried_out :])
            self._num_carried_out = len(decisions)
        for row, num in enumerate(self.requests.num_preemptions):
            if num != self._preemptions[row]:
                self.computed[row], self._preemptions[row] = 0, num
        chunks = {seq.row: num_tokens for seq, num_tokens in plan.chunks}
        contexts = []
        for seq in self.running.values():
            # What a prefix hit has found counts as computed; the memory knows whether it is there.
            start = self.computed[seq.row] or self.requests.num_hit_tokens[seq.row]
            num_tokens = chunks.pop(seq.row, int(seq.decoding))
            if seq.decoding:
                contexts.append(start + 1)
            if self.allocator.keeps_kv:
                slots = slots_by_position(self.allocator, seq)
                self.memory.compute(seq.row, slots, start, start + num_tokens)
            self.computed[seq.row] = start + num_tokens
            assert self.computed[seq.row] <= seq.end, f"INV-4: row {seq.row} is computed beyond E"
        assert not chunks, f"chunks of {list(chunks)}, which do not run"
        if self.allocator.keeps_kv:
            totals = (plan.num_decode_tokens, plan.decode_context_slots)
            assert totals == (len(contexts), sum(contexts)), "the plan counts other reads"
