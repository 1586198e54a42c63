"""What an engine says of the pool between a plan and its commit is what its recorder integrates."""

from collections import Counter
from typing import Any

import pytest
from random_cases import config_of, trace_of

from kvtwin.sim import assemble, policy_names
from kvtwin.sim.drive import drive
from kvtwin.sim.executor import CostExecutor
from kvtwin.sim.plan import Plan
from kvtwin.sim.registry import find_engine, find_policy
from kvtwin.sim.summary import PARTS


class OneStepExecutor(CostExecutor):
    """Carries out the first step of each plan."""

    def execute(self, plan: Plan) -> Any:
        return super().execute(plan)[:1]


REQUESTS = [(0, 5 + 7 * i % 23, 1 + 11 * i % 17) for i in range(14)]
CONTENTS = [((i % 2, 0, min(request[1], 6)),) for i, request in enumerate(REQUESTS)]
POOL_SLOTS = 96


@pytest.mark.parametrize("policy", policy_names())
def test_parts_times_durations_are_the_integrals(policy: str) -> None:
    engine_type: Any = find_engine(find_policy(policy))
    sums: Counter[str] = Counter()
    refused: set[int | None] = set()

    class Summing(engine_type):  # type: ignore[misc]
        def commit(self, plan: Plan, ends_ns: Any) -> None:
            parts = self.parts()
            assert list(parts) == list(PARTS)
            assert sum(parts.values()) == POOL_SLOTS
            refused.add(self.refused_row)
            if parts["external"]:
                assert self.refused_row is not None
            for name, slots in parts.items():
                sums[name] += slots * (ends_ns[0] - plan.start_ns)
            super().commit(plan, ends_ns)

    config = config_of(
        policy,
        num_gpu_blocks_override=24,
        block_size=4,
        max_model_len=48,
        max_num_seqs=2 if policy == "slots" else 6,
        max_num_batched_tokens=16,
        cost="roofline",
    )
    run = assemble(trace_of(REQUESTS, CONTENTS), config, decisions=True, engine_type=Summing)
    end_ns = drive(run.engine, OneStepExecutor(run.cost))
    shares = run.finish(end_ns)["shares_whole_run"]
    assert {name: sums[name] / (POOL_SLOTS * end_ns) for name in PARTS} == shares
    if policy != "slots":  # its places are as many as its sequences
        assert len(refused) > 1, "somebody was refused, and not always"
