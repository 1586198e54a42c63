"""What an engine says that a step computes, against what its plan and its requests say."""

from pathlib import Path
from typing import Any

import pytest
from allocators import ALLOCATORS
from random_cases import config_of, trace_of

from kvtwin.sim import simulate
from kvtwin.sim.engine import Engine
from kvtwin.sim.plan import Plan

REQUESTS = [(0, 5 + 7 * i % 23, 1 + 11 * i % 17) for i in range(14)]
CONTENTS = [((i % 2, 0, min(request[1], 6)),) for i, request in enumerate(REQUESTS)]


class TracingEngine(Engine):
    """Follows each request's computed tokens from the work of each step alone."""

    num_restarts = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.computed: dict[Any, int] = {}
        self.finished: dict[int, int] = {}

    def commit(self, plan: Plan, ends_ns: Any) -> None:
        work = self.work(plan)
        assert sum(num for _, _, num in work) == plan.num_prefill_tokens + plan.num_decode_tokens
        assert len({id(seq) for seq, _, _ in work}) == len(work), "a sequence twice in a step"
        for seq, first, num_tokens in work:
            before = self.computed.get(seq.serial, self.requests.num_hit_tokens[seq.row])
            assert first == (before if self.allocator.keeps_kv else 0)
            self.computed[seq.serial] = first + num_tokens
            self.finished[seq.row] = first + num_tokens
        super().commit(plan, ends_ns[:1])

    def finish(self, end_ns: int) -> None:
        super().finish(end_ns)
        ends = {row: sum(REQUESTS[row][1:]) - 1 for row in self.requests.accepted}
        assert self.finished == ends, "P + O - 1 tokens, the first of them as its prompt"
        TracingEngine.num_restarts = len(self.computed) - len(ends)


@pytest.mark.parametrize("policy", ALLOCATORS)
def test_work_is_what_is_computed(policy: str, tmp_path: Path) -> None:
    config = config_of(
        policy,
        num_gpu_blocks_override=24,
        block_size=4,
        max_model_len=48,
        max_num_seqs=2 if policy == "slots" else 6,
        max_num_batched_tokens=16,
        cost="constant:1000",
    )
    trace = trace_of(REQUESTS, CONTENTS)
    summary = simulate(trace, config, tmp_path, engine_type=TracingEngine, decisions=True)
    assert summary["num_rejected"] == 0
    assert TracingEngine.num_restarts == summary["preemptions"]
    assert (summary["preemptions"] > 0) == (policy in ("paged", "contiguous", "no-cache"))
    assert (summary["hit_tokens"] > 0) == (policy == "slots")
