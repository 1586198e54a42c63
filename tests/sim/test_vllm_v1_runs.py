"""The V1 policies in runs: against `paged`, which has another scheduler, and against books kept from scratch."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from example_counts import examples
from hand_runs import run
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import config_of, configs, run_files, trace_of, traces

from kvtwin.sim import RunConfig, simulate
from kvtwin.sim.plan import Plan
from kvtwin.sim.vllm_v1.engine import V1Engine
from kvtwin.traces import Trace, UserError

V1 = ("vllm-v1", "vllm-v1-no-caching")


def requests_of(directory: Path) -> dict[str, list[Any]]:
    """Columns of requests.parquet but the limit of a rejection, which the null block lowers."""
    columns = pq.read_table(directory / "requests.parquet").to_pydict()
    del columns["limit_slots"]
    return columns


def test_without_caching_times_are_those_of_paged(costs: list[str], out_dir: Path) -> None:
    """One group, nothing shared, one block more for the null block: two schedulers, the same steps."""

    @settings(max_examples=examples(150))
    @given(trace=traces(), config=configs("paged", costs))
    def same(trace: Trace, config: RunConfig) -> None:
        fields = config.to_dict() | {"cost": config.cost, "watermark": 0.0}
        num_blocks = fields.pop("num_gpu_blocks_override")
        for name, more in (("paged", 0), ("vllm-v1-no-caching", 1)):
            fields["policy"] = name
            simulate(
                trace,
                RunConfig(**fields, num_gpu_blocks_override=num_blocks + more),
                out_dir / name,
                paranoid=True,
            )
        assert requests_of(out_dir / "paged") == requests_of(out_dir / "vllm-v1-no-caching")

    same()


class Watched(V1Engine):
    """Keeps what every slot holds, token by token, and counts the parts from tables and contents at every plan."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.size = self.policy.block_slots
        self.contents: dict[int, Any] = {}  # by slot
        self.unwritten_reads = self.shared_slots = 0

    def token(self, row: int, position: int) -> Any:
        """What the trace says is there; a token like no other where it says nothing."""
        left = position
        pieces = self.requests.prompts[row] if self.requests.prompts else ()
        for stream, start, num_tokens in pieces:
            if left < num_tokens:
                return stream, start + left
            left -= num_tokens
        return "own", row, position

    def plan(self, now_ns: int) -> Plan | None:
        plan = super().plan(now_ns)
        if plan is not None:
            self.watch(plan)
        return plan

    def watch(self, plan: Plan) -> None:
        before, written, contexts = {}, {}, []
        work = self.work(plan)
        for request, first, num_tokens in work:
            before[request] = first
            for position in range(first, first + num_tokens):
                slot = self.slot(request, position)
                assert slot not in written, f"slot {slot} is computed twice in a step"
                written[slot] = self.token(request.row, position)
            if num_tokens == 1 and first >= request.num_prompt_tokens:
                contexts.append(first + 1)
        assert sum(num for _, _, num in work) == plan.num_prefill_tokens + plan.num_decode_tokens
        assert (len(contexts), sum(contexts)) == (plan.num_decode_tokens, plan.decode_context_slots)
        live, reserved, held = set(), set(), set()
        for request in self.holders():
            if request not in before:
                if request.decodes:
                    self.scheduler.settle(request)
                before[request] = request.computed
            num_slots = len(request.tables[0]) * self.size
            slots = [self.slot(request, position) for position in range(num_slots)]
            self.shared_slots += len(held.intersection(slots))
            held.update(slots)
            for position in range(before[request]):
                slot, token = slots[position], self.token(request.row, position)
                if written.get(slot) == token:
                    continue  # who shares it computes it in this very step
                live.add(slot)
                self.unwritten_reads += self.contents.get(slot) != token
            reserved.update(slots[before[request] : request.end_tokens - 1])
        parts = self.parts()
        cached = sum(num for _, num in self.policy.cached_runs())
        free = self.policy.num_slots - len(held) - cached - self.size
        expected = {
            "live": len(live),
            "reserved": len(reserved - live),
            "internal": len(held - live - reserved),
            "rounding": self.size,
            "cached": cached,
            "free": free - parts["external"],
        }
        assert {name: parts[name] for name in expected} == expected
        self.contents |= written

    def slot(self, request: Any, position: int) -> int:
        return request.tables[0][position // self.size] * self.size + position % self.size


@pytest.mark.parametrize("policy", V1)
@pytest.mark.parametrize("scheduling_policy", ["fcfs", "priority"])
def test_parts_and_contents_are_what_tables_say(
    policy: str, scheduling_policy: str, costs: list[str], out_dir: Path
) -> None:
    """INV-1 to INV-8 in every step. Only by priority may a hit find what nobody has written (rule 6.10 of vLLM)."""
    seen = dict.fromkeys(("hits", "shared", "preemptions"), 0)

    @settings(max_examples=examples(60))
    @given(
        trace=traces(with_content=True),
        config=configs(policy, costs),
        threshold=st.sampled_from([0, 0, 3, 20]),
        is_async=st.booleans(),
        is_chunked=st.booleans(),
        free_order=st.sampled_from(["front", "back"]),
        priorities=st.integers(0, 1 << 62),
    )
    def hold(
        trace: Trace,
        config: RunConfig,
        threshold: int,
        is_async: bool,
        is_chunked: bool,
        free_order: str,
        priorities: int,
    ) -> None:
        fields = config.to_dict() | {"cost": config.cost, "scheduling_policy": scheduling_policy}
        fields |= {
            "long_prefill_token_threshold": threshold,
            "async_scheduling": is_async,
            "enable_chunked_prefill": is_chunked,
            "free_order": free_order,
        }
        if scheduling_policy == "priority":
            fields["admission"] = "full"
        if not is_chunked:
            fields["max_num_batched_tokens"] += config.max_model_len or 0
        engines = []

        def watched(requests: Any, *arguments: Any) -> Watched:
            requests.priorities = [
                priorities >> 2 * (row % 31) & 3 for row in range(len(requests.arrival_ns))
            ]
            engines.append(Watched(requests, *arguments))
            return engines[0]

        summary = simulate(
            trace,
            RunConfig(**fields),
            out_dir,
            engine_type=watched,
            paranoid=True,
            snapshots=True,
            decisions=True,
        )
        assert summary["num_finished"] + summary["num_rejected"] == trace.num_requests
        (engine,) = engines
        if scheduling_policy == "fcfs":
            assert engine.unwritten_reads == 0, "INV-7: what was hit had not been written"
        seen["hits"] += summary["hit_tokens"]
        seen["shared"] += engine.shared_slots
        seen["preemptions"] += summary["preemptions"]

    hold()
    assert seen["preemptions"] > 0
    assert (seen["hits"] > 0, seen["shared"] > 0) == (policy == "vllm-v1",) * 2


def test_a_shared_prefix_by_hand(tmp_path: Path) -> None:
    """Prompts of 6 tokens, the first 4 the same, in blocks of 2; one output token, then a prompt that goes on.

    Requests 0 and 1 come together: 1 finds the blocks that 0 fills in this very step. 6 blocks of 2 with the null
    block: 0 takes 3, 1 shares 2 and takes 1. Request 2 repeats the prompt of 0 in the second step: all 6 tokens are
    known, but the last one has to be computed again, so it hits 4.
    """
    first = ((1, 0, 6),)
    second = ((1, 0, 4), (2, 0, 2))
    made = run(
        "vllm-v1",
        [(0, 6, 1), (0, 6, 1), (1, 6, 1)],
        tmp_path,
        num_slots=14,
        block_size=2,
        contents=[first, second, first],
    )
    assert [row["num_hit_tokens"] for row in made.requests] == [0, 4, 4]
    assert made.finished_steps == [1, 1, 2]
    assert made.summary["hit_tokens"] == 8
    assert [decision[1:4] for decision in made.decisions] == [
        *(("grant", 0, block) for block in (1, 2, 3)),
        *(("share", 1, block) for block in (1, 2)),
        ("grant", 1, 4),
        *(("free", 0, block) for block in (3, 2, 1)),
        *(("free", 1, block) for block in (4, 2, 1)),
        *(("share", 2, block) for block in (1, 2)),
        ("grant", 2, 5),
        *(("free", 2, block) for block in (5, 2, 1)),
    ]
    names = ("live", "reserved", "internal", "rounding", "cached", "free")
    parts = [tuple(row[f"{name}_slots"] for name in names) for row in made.timeline]
    # Nobody's tokens are live before the step has computed them. Block 3 and block 4 stay cached.
    assert parts == [(0, 8, 0, 2, 0, 4), (4, 2, 0, 2, 4, 2)]


def test_answers_are_found_again(tmp_path: Path) -> None:
    """The second prompt repeats the first one and its answer of 3 tokens, whose last one has no KV."""
    chat = ((1, 0, 9),)
    for policy, hit in zip(V1, (6, 0), strict=True):
        made = run(
            policy,
            [(0, 4, 3), (100_000_000, 9, 1)],
            tmp_path / policy,
            num_slots=20,
            block_size=2,
            contents=[((1, 0, 7),), chat],
        )
        assert [row["num_hit_tokens"] for row in made.requests] == [0, hit]


def test_asynchronous_scheduling_frees_a_step_later(tmp_path: Path) -> None:
    """12 slots: request 0 has 4 of its 5 and request 1 its first when request 2 asks for 8, more than the 7 left.

    Request 0 ends in the second step. Then 9 are left beside request 1, which takes one in each step; with
    asynchronous scheduling the third step has been planned by then, and the fourth finds 8.
    """
    for is_async, step in ((False, 3), (True, 4)):
        made = run(
            "vllm-v1-no-caching",
            [(0, 4, 2), (0, 1, 6), (0, 8, 1)],
            tmp_path / str(is_async),
            num_slots=13,
            async_scheduling=is_async,
        )
        assert made.finished_steps == [2, 6, step]


def test_a_smaller_number_goes_first(tmp_path: Path) -> None:
    trace = trace_of([(0, 4, 2)] * 3)
    order = {}
    for rule in ("fcfs", "priority"):
        config = config_of(
            "vllm-v1", num_gpu_blocks_override=6, block_size=1, scheduling_policy=rule
        )

        def prioritized(requests: Any, *arguments: Any) -> V1Engine:
            requests.priorities = [2, 0, 1]
            return V1Engine(requests, *arguments)

        simulate(trace, config, tmp_path / rule, engine_type=prioritized)
        columns = requests_of(tmp_path / rule)
        order[rule] = np.argsort(columns["admitted_ns"], kind="stable").tolist()
    assert order == {"fcfs": [0, 1, 2], "priority": [1, 2, 0]}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 256},
            "--max-num-batched-tokens is 256; it must be at least 300",
        ),
        ({"long_prefill_token_threshold": 301}, "--max-model-len is 300; it must be at least 301"),
    ],
)
def test_what_vllm_does_not_start_with_is_refused(
    fields: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    config = config_of("vllm-v1", num_gpu_blocks_override=99, max_model_len=300, **fields)
    with pytest.raises(UserError, match=problem):
        simulate(trace_of([(0, 1, 1)]), config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_request_as_large_as_the_pool_is_rejected(tmp_path: Path) -> None:
    """The null block is nobody's: of 5 blocks of 4, sequences of 16 tokens fit and those of 17 do not."""
    made = run("vllm-v1", [(0, 16, 1), (0, 17, 1)], tmp_path, num_slots=20, block_size=4)
    assert [row["status"] for row in made.requests] == ["finished", "rejected"]
    assert made.summary["rejections"] == [
        {"row": 1, "reason": "largest need exceeds an empty pool", "value": 20, "limit": 16}
    ]


@pytest.mark.parametrize("policy", V1)
def test_same_bytes_every_time(policy: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 60, (80, 2)).tolist()
    trace = trace_of([(0, *pair) for pair in lengths], [((1, 0, prompt),) for prompt, _ in lengths])
    config = config_of(policy, num_gpu_blocks_override=30, block_size=8)
    for name in ("one", "two"):
        simulate(trace, config, tmp_path / name, snapshots=True, decisions=True)
    assert run_files(tmp_path / "one") == run_files(tmp_path / "two")
