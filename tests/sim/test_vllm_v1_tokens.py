"""When tokens of the V1 policies come, what is computed again and what is free, counted from outside."""

from pathlib import Path
from typing import Any

import pytest
from example_counts import examples
from hand_runs import STEP_NS
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import config_of, configs, trace_of, traces

from kvtwin.sim import RunConfig, simulate
from kvtwin.sim.gaps import GapHistogram
from kvtwin.sim.plan import Plan
from kvtwin.sim.vllm_v1.engine import V1Engine
from kvtwin.traces import Trace


class Outside(V1Engine):
    """Reads plans, what they compute and when they end, and nothing else of the engine's state."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        num = len(self.requests.arrival_ns)
        self.num_tokens = [0] * num  # that came out, by row
        self.last_ns, self.first_ns, self.came_in_ns = [-1] * num, [-1] * num, [-1] * num
        self.computed, self.hit = [0] * num, [0] * num
        self.expected = GapHistogram()
        self.num_again = self.num_left_out = self.loaded_ns = 0
        self.did_wait = False

    def plan(self, now_ns: int) -> Plan | None:
        plan = super().plan(now_ns)
        requests, running = self.requests, {request.row for request in self.holders()}
        for row in running:
            if self.came_in_ns[row] < 0:
                self.came_in_ns[row] = now_ns
        if plan is None:
            return None
        work = self.work(plan)
        for request, first, _ in work:
            row = request.row
            if not self.computed[row]:
                self.hit[row] = first
            self.num_again += max(0, self.computed[row] - first)
            self.computed[row] = first
        self.num_left_out += len(running - {request.row for request, _, _ in work})
        waits = [
            row
            for row in requests.accepted
            if row not in running and self.num_tokens[row] < requests.num_output_tokens[row]
        ]
        if waits:
            self.did_wait = True
        elif self.did_wait:
            self.did_wait, self.loaded_ns = False, now_ns
        return plan

    def commit(self, plan: Plan, ends_ns: Any) -> None:
        (end_ns,) = ends_ns
        self.views_agree()
        for request, first, num in self.work(plan):
            row = request.row
            self.computed[row] = first + num
            if first + num < self.requests.num_prompt_tokens[row] + self.num_tokens[row]:
                continue  # a chunk that is not the last one
            if self.num_tokens[row]:
                self.expected.add_one(end_ns - self.last_ns[row], 1)
            else:
                self.first_ns[row] = end_ns
            self.num_tokens[row] += 1
            self.last_ns[row] = end_ns
        super().commit(plan, ends_ns)

    def assert_same_times(self) -> None:
        requests = self.requests
        for row in requests.accepted:
            assert self.num_tokens[row] == requests.num_output_tokens[row]
            assert requests.first_token_ns[row] == self.first_ns[row]
            assert requests.finished_ns[row] == self.last_ns[row]
            assert requests.admitted_ns[row] == self.came_in_ns[row]
            assert requests.num_hit_tokens[row] == self.hit[row]
        gaps = self.recorder.gaps
        assert gaps.mean_ms() == self.expected.mean_ms()
        for percent in range(1, 101):
            assert gaps.percentile_ms(percent) == self.expected.percentile_ms(percent)

    def views_agree(self) -> None:
        policy = self.policy
        free, cached = policy.free_runs(), policy.cached_runs()
        assert sum(num for _, num in free) == policy.num_free_slots()
        assert sum(num for _, num in cached) == policy.num_cached_slots()
        assert policy.largest_free_run() == max((num for _, num in free), default=0)
        assert all(policy.pool.keys[first // policy.block_slots] for first, _ in cached)


@pytest.mark.parametrize("policy", ["vllm-v1", "vllm-v1-no-caching"])
def test_tokens_come_when_their_steps_end(policy: str, costs: list[str], out_dir: Path) -> None:
    seen = dict.fromkeys(("again", "hit", "waited"), 0)

    @settings(max_examples=examples(40))
    @given(
        trace=traces(with_content=True),
        config=configs(policy, costs),
        threshold=st.sampled_from([0, 0, 3, 20]),
        is_async=st.booleans(),
        priorities=st.none() | st.integers(0, 1 << 62),
    )
    def hold(
        trace: Trace, config: RunConfig, threshold: int, is_async: bool, priorities: int | None
    ) -> None:
        fields = config.to_dict() | {"cost": config.cost, "async_scheduling": is_async}
        fields |= {"long_prefill_token_threshold": threshold}
        if priorities is not None:
            fields |= {"scheduling_policy": "priority", "admission": "full"}
        engines = []

        def outside(requests: Any, *arguments: Any) -> Outside:
            if priorities is not None:
                requests.priorities = [
                    priorities >> 2 * (row % 31) & 3 for row in range(len(requests.arrival_ns))
                ]
            engines.append(Outside(requests, *arguments))
            return engines[0]

        summary = simulate(trace, RunConfig(**fields), out_dir, engine_type=outside)
        (engine,) = engines
        engine.assert_same_times()
        if priorities is None:  # by priority, tokens can be lost that no step has computed
            assert summary["recomputed_tokens"] == engine.num_again
        if engine.loaded_ns:
            assert summary["loaded_end_ns"] == engine.loaded_ns
        seen["again"] += engine.num_again
        seen["hit"] += summary["hit_tokens"]
        seen["waited"] += engine.loaded_ns > 0

    hold()
    assert seen.pop("hit") > 0 or policy != "vllm-v1"
    assert all(seen.values()), seen


def by_priority(
    trace: Trace, priorities: list[int], num_blocks: int, directory: Path, **fields: Any
) -> tuple[dict[str, Any], Outside]:
    """Steps of STEP_NS, blocks of a token unless the fields say otherwise, and the null block."""
    config = config_of(
        "vllm-v1-no-caching",
        num_gpu_blocks_override=num_blocks + 1,
        scheduling_policy="priority",
        cost=f"constant:{STEP_NS}",
        **({"block_size": 1} | fields),
    )
    engines = []

    def outside(requests: Any, *arguments: Any) -> Outside:
        requests.priorities = priorities
        engines.append(Outside(requests, *arguments))
        return engines[0]

    summary = simulate(trace, config, directory, engine_type=outside, paranoid=True)
    return summary, engines[0]


def test_those_behind_one_that_leaves_wait_a_step(tmp_path: Path) -> None:
    """20 blocks. Two prompts of 5, and one of 4 that comes behind them, so it is the last in the batch.

    In the fourth step the first request takes the last block. The second one, which is the least urgent, leaves with
    its 7, and the third is not reached: its third token comes two steps after its second. The second one wants 8 blocks
    then, and finds them when the first has ended, behind step 6.
    """
    trace = trace_of([(0, 5, 6), (0, 5, 6), (1, 4, 5)])
    summary, engine = by_priority(trace, [0, 3, 0], 20, tmp_path)
    assert engine.num_left_out == 1
    assert [end_ns // STEP_NS for end_ns in engine.requests.finished_ns] == [6, 9, 7]
    engine.assert_same_times()
    # 14 gaps: one of two steps, one of four.
    assert summary["itl_ms"]["mean"] == pytest.approx((12 + 2 + 4) / 14 * STEP_NS / 1e6)
    assert summary["itl_ms"]["p99"] == pytest.approx(4 * STEP_NS / 1e6, rel=0.004)


def test_who_had_room_for_its_token_is_left_out_all_the_same(tmp_path: Path) -> None:
    """10 blocks of 2, three prompts of 3, the last a step later. Behind four steps all have 3 blocks, with 6 tokens in
    the first two, and 5 in the last.

    The first request takes the block that is left; the second, the least urgent, finds none and leaves. The last one
    has room for its token and is not reached. The second finds 4 blocks when the first has ended.
    """
    trace = trace_of([(0, 3, 6), (0, 3, 6), (1, 3, 6)])
    _, engine = by_priority(trace, [0, 3, 0], 10, tmp_path, block_size=2)
    assert engine.num_left_out == 1
    assert [end_ns // STEP_NS for end_ns in engine.requests.finished_ns] == [6, 8, 8]
    engine.assert_same_times()


def test_who_is_left_out_twice_and_has_to_leave_keeps_its_last_time(tmp_path: Path) -> None:
    """29 blocks and prompts of a token: four urgent requests and one that is not, a step later another one that is not,
    and in the step after an urgent one. After four steps they hold 16, 4, 3 and 2.

    Then the urgent ones take 4 blocks in each step, which is all there is: in the fifth step the first of the others
    leaves with its 4 blocks, in the sixth the second with its 3, and in the seventh the last one has to leave, which
    had its last token when the fourth step ended and was left out twice.
    """
    arrivals = [0, 0, 0, 0, 0, 1, STEP_NS + 1]
    outputs = [7, 7, 7, 7, 9, 9, 9]  # the first four end with the seventh step
    trace = trace_of([(at, 1, output) for at, output in zip(arrivals, outputs, strict=True)])
    _, engine = by_priority(trace, [0, 0, 0, 0, 4, 3, 0], 29, tmp_path)
    assert engine.requests.num_preemptions.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert engine.num_left_out == 3, "the second of the others once, the last one twice"
    engine.assert_same_times()


def test_two_may_have_to_leave_before_anybody_computes(tmp_path: Path) -> None:
    """15 blocks, chunks of 4. Behind three steps the requests hold 3, 8 and 4; the last is the most urgent.

    The first wants one more, is the least urgent, and leaves. The second wants 4, finds 3, and leaves. The last goes
    on, without any time having passed, and the second begins anew beside it with 4, to leave again for the last chunk,
    which ends behind step 5. Then both come back: the first has its two last tokens with steps 6 and 7.
    """
    trace = trace_of([(0, 1, 5), (1, 12, 1), (STEP_NS + 1, 12, 1)])
    summary, engine = by_priority(
        trace, [4, 3, 0], 15, tmp_path, admission="step", long_prefill_token_threshold=4
    )
    assert engine.requests.num_preemptions.tolist() == [1, 2, 0]
    assert summary["recomputed_tokens"] == 3 + 8 + 4
    assert [end_ns // STEP_NS for end_ns in engine.requests.finished_ns] == [7, 8, 5]
    engine.assert_same_times()


def test_tokens_of_those_who_are_left_out_come_late(out_dir: Path) -> None:
    """Whoever is left out may be left out again, or have to leave before its token comes."""
    num_left_out = 0

    @settings(max_examples=examples(60))
    @given(
        requests=st.lists(
            st.tuples(st.integers(0, 3), st.integers(1, 12), st.integers(3, 20)),
            min_size=3,
            max_size=9,
        ),
        priorities=st.lists(st.integers(0, 5), min_size=9, max_size=9),
        more=st.integers(0, 12),
        budget=st.sampled_from([9, 12, 1000]),
    )
    def hold(requests: list[Any], priorities: list[int], more: int, budget: int) -> None:
        nonlocal num_left_out
        num_blocks = max(prompt + output for _, prompt, output in requests) + more
        _, engine = by_priority(
            trace_of([(at * STEP_NS, *lengths) for at, *lengths in sorted(requests)]),
            # The last to come is the most urgent, or nobody would be behind a victim.
            sorted(priorities[: len(requests)], reverse=True),
            num_blocks,
            out_dir,
            max_num_seqs=9,
            max_num_batched_tokens=budget,
        )
        engine.assert_same_times()
        num_left_out += engine.num_left_out

    hold()
    assert num_left_out > 5
