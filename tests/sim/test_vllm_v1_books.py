"""The V1 policies against books kept from scratch: what every slot holds, and which part it is in."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import config_of, configs, trace_of, traces

from kvtwin.sim import RunConfig, pool, simulate
from kvtwin.sim.block_groups import ONE_GROUP, BlockGroups
from kvtwin.sim.plan import Plan
from kvtwin.sim.vllm_v1.engine import V1Engine
from kvtwin.traces import Trace

POLICIES = ("vllm-v1", "vllm-v1-no-caching")


# Windows and slots of a token, by group; all divide what a token takes in the model.
GROUPS = (
    ONE_GROUP,
    BlockGroups((3,), (1,)),
    BlockGroups((None, 5), (1, 1)),
    BlockGroups((None, 4, 4), (2, 1, 1)),
    BlockGroups((7, None, 2), (3, 3, 2)),
    BlockGroups((None, 1, 9, None), (1, 1, 1, 1)),
)


class Watched(V1Engine):
    """Keeps what every cell holds, token by token, and counts the parts from tables and contents at every plan.

    A cell is a slot that a token takes: (block, token of the block, slot of the token). A token of several slots has
    them all or none, so that contents are kept by (block, token).
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        settings = self.policy.settings
        self.size, self.groups = settings.block_size, settings.groups
        self.contents: dict[tuple[int, int], Any] = {}
        self.unwritten_reads = self.shared = self.out_of_sight = 0
        self.known_at_admission: dict[tuple[int, int], int] = {}

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
        before, contexts = {}, []
        work = self.work(plan)
        for request, first, num_tokens in work:
            before[request] = first
            # A preempted one computes what it had generated before as part of its prompt.
            if first >= self.known_at_admission.setdefault(
                (request.row, request.serial), request.known
            ):
                assert num_tokens == 1
                contexts.append(first + 1)
        assert sum(num for _, _, num in work) == plan.num_prefill_tokens + plan.num_decode_tokens
        assert (len(contexts), sum(contexts)) == (plan.num_decode_tokens, plan.decode_context_slots)
        for request in self.holders():
            if request not in before:
                if request.decodes:
                    self.scheduler.settle(request)
                before[request] = request.computed
        counted: Counter[str] = Counter(rounding=self.policy.block_slots)  # the null block
        taken: set[int] = set()
        for group, window in enumerate(self.groups.windows):
            blocks = self.watch_group(group, window, work, before, counted)
            assert not taken & blocks, "a block serves two groups"
            taken |= blocks
        assert 0 not in taken, "the null block is held"
        counted["cached"] = sum(num for _, num in self.policy.cached_runs())
        parts = self.parts()
        counted["free"] = self.policy.num_slots - counted.total() - parts["external"]
        assert {name: num for name, num in parts.items() if name != "external"} == counted

    def watch_group(
        self, group: int, window: int | None, work: Any, before: Any, counted: Counter[str]
    ) -> set[int]:
        """Counts the parts of one group's blocks, and returns these."""
        written: dict[tuple[int, int], Any] = {}
        for request, first, num_tokens in work:
            for position in range(first, first + num_tokens):
                cell = self.cell(request, group, position)
                assert cell is not None, "a token is computed into no block"
                assert cell not in written, f"{cell} is computed twice in a step"
                written[cell] = self.token(request.row, position)
        live, reserved, held = set(), set(), set()
        for request, num_before in before.items():
            table = request.tables[group]
            cells = [self.cell(request, group, at) for at in range(len(table) * self.size)]
            self.shared += len(held.intersection(cells) - {None})
            held.update(cells)
            first_read = 0 if window is None else max(0, num_before - window + 1)
            self.out_of_sight += cells[:num_before].count(None)
            for position in range(num_before):
                cell, token = cells[position], self.token(request.row, position)
                if written.get(cell) == token:
                    continue  # who shares it computes it in this very step
                live.add(cell)
                if position >= first_read:
                    assert cell is not None, f"position {position} is in sight and in no block"
                    self.unwritten_reads += self.contents.get(cell) != token
            reserved.update(cells[num_before : request.end_tokens - 1])
        for cells in (held, live, reserved):
            cells.discard(None)
        slots, blocks = self.groups.token_slots[group], {block for block, _ in held}
        counted["live"] += len(live) * slots
        counted["reserved"] += len(reserved - live) * slots
        counted["internal"] += len(held - live - reserved) * slots
        counted["rounding"] += len(blocks) * (self.policy.block_slots - self.size * slots)
        self.contents |= written
        return blocks

    def cell(self, request: Any, group: int, position: int) -> tuple[int, int] | None:
        """None: its block is out of sight and gone."""
        block = request.tables[group][position // self.size]
        return (block, position % self.size) if block else None


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("scheduling_policy", ["fcfs", "priority"])
def test_parts_and_contents_are_what_tables_say(
    policy: str, scheduling_policy: str, costs: list[str], out_dir: Path
) -> None:
    """INV-1 to INV-8 in every step. Only by priority may a hit find what nobody has written (rule 6.10 of vLLM)."""
    seen = dict.fromkeys(("hits", "shared", "preemptions", "out of sight", "padded"), 0)

    @settings(max_examples=examples(90))
    @given(
        trace=traces(with_content=True),
        config=configs(policy, costs),
        threshold=st.sampled_from([0, 0, 3, 20]),
        is_async=st.booleans(),
        is_chunked=st.booleans(),
        free_order=st.sampled_from(["front", "back"]),
        priorities=st.integers(0, 1 << 62),
        groups=st.sampled_from(GROUPS),
    )
    def hold(
        trace: Trace,
        config: RunConfig,
        threshold: int,
        is_async: bool,
        is_chunked: bool,
        free_order: str,
        priorities: int,
        groups: BlockGroups,
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

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pool, "vllm_groups", lambda *_, **__: groups)
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
        seen["shared"] += engine.shared
        seen["out of sight"] += engine.out_of_sight
        seen["padded"] += len(set(groups.token_slots)) > 1
        seen["preemptions"] += summary["preemptions"]

    hold()
    assert min(seen[name] for name in ("preemptions", "out of sight", "padded")) > 0
    assert (seen["hits"] > 0, seen["shared"] > 0) == (policy == "vllm-v1",) * 2


def test_what_was_never_written_can_be_hit_by_priority(tmp_path: Path) -> None:
    """Request 0 gets 4 tokens in the fourth step, and then request 1 takes its memory in the same step.

    It had 13 tokens computed and would have had 17, so blocks up to 16 tokens can be found, and are, when it returns:
    3 of those tokens nobody has written. vLLM does the same: see tests/golden/unwritten_hit.
    """
    config = config_of(
        "vllm-v1",
        num_gpu_blocks_override=11,
        block_size=2,
        max_num_batched_tokens=5,
        max_num_seqs=4,
        long_prefill_token_threshold=4,
        scheduling_policy="priority",
    )
    engines = []

    def watched(requests: Any, *arguments: Any) -> Watched:
        requests.priorities = [3, 0]
        engines.append(Watched(requests, *arguments))
        return engines[0]

    trace = trace_of([(0, 20, 1), (1, 1, 3)])
    summary = simulate(trace, config, tmp_path, engine_type=watched, paranoid=True)
    assert summary["preemptions"] == 1
    # Its 13 tokens are lost and 16 are found: nothing is computed again.
    assert summary["recomputed_tokens"] == 0
    assert engines[0].unwritten_reads == 3


def test_whoever_makes_room_for_itself_had_no_token_yet(tmp_path: Path) -> None:
    """The budget of 4 reaches nobody behind request 0, which is visited first, finds no block and is the victim.

    21 blocks of one token: request 0 takes one in each step and request 1 three, until they have 6 and 15, and
    request 1 wants 4 more. What request 0 is given back of that step's budget is nothing.
    """
    config = config_of(
        "vllm-v1-no-caching",
        num_gpu_blocks_override=22,
        block_size=1,
        max_num_batched_tokens=4,
        max_num_seqs=4,
        scheduling_policy="priority",
    )

    def watched(requests: Any, *arguments: Any) -> Watched:
        requests.priorities = [3, 0]
        return Watched(requests, *arguments)

    trace = trace_of([(0, 1, 12), (1, 19, 2)])
    summary = simulate(trace, config, tmp_path, engine_type=watched, paranoid=True)
    assert (summary["preemptions"], summary["recomputed_tokens"]) == (1, 6)
