"""The V1 policies against books kept from scratch: what every slot holds, and which part it is in."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import config_of, configs, trace_of, traces
from v1_books import GROUPS, Watched, check_files

from kvtwin.sim import RunConfig, pool, simulate
from kvtwin.sim.block_groups import BlockGroups
from kvtwin.traces import Trace

POLICIES = ("vllm-v1", "vllm-v1-no-caching")
PADDED = [groups for groups in GROUPS if len(set(groups.token_slots)) > 1]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("scheduling_policy", ["fcfs", "priority"])
def test_parts_and_contents_are_what_tables_say(
    policy: str, scheduling_policy: str, costs: list[str], out_dir: Path
) -> None:
    """INV-1 to INV-8 in every step. Only by priority may a hit find what nobody has written (rule 6.10 of vLLM)."""

    @settings(max_examples=examples(60))
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
        check_files(out_dir, engine.policy.block_slots)
        if scheduling_policy == "fcfs":
            assert engine.unwritten_reads == 0, "INV-7: what was hit had not been written"

    hold()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("scheduling_policy", ["fcfs", "priority"])
def test_the_same_in_crowded_pools(
    policy: str, scheduling_policy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Many requests for few blocks, most of them in groups whose tokens take different slots."""
    rng = random.Random(f"{policy} {scheduling_policy}")
    seen: Counter[str] = Counter()
    for number in range(examples(30)):
        trace = crowd(rng)
        groups = rng.choice([*GROUPS, *PADDED, *PADDED])
        monkeypatch.setattr(pool, "vllm_groups", lambda *_, found=groups, **__: found)
        config = config_of(
            policy,
            num_gpu_blocks_override=rng.randint(30, 100),
            block_size=rng.choice([1, 2, 3]),
            max_model_len=46,
            max_num_seqs=rng.choice([3, 6]),
            max_num_batched_tokens=rng.choice([6, 12, 50]),
            long_prefill_token_threshold=rng.choice([0, 3]),
            watermark=rng.choice([0.0, 0.15]),
            scheduling_policy=scheduling_policy,
            async_scheduling=rng.random() < 0.5,
            cost="constant:20000000",
        )
        engines: list[Watched] = []

        def watched(*arguments: Any, made: list[Watched] = engines) -> Watched:
            made.append(Watched(*arguments))
            return made[0]

        out = tmp_path / str(number)
        summary = simulate(
            trace, config, out, engine_type=watched, paranoid=True, snapshots=True, decisions=True
        )
        (engine,) = engines
        check_files(out, engine.policy.block_slots)
        assert engine.unwritten_reads == 0 or scheduling_policy == "priority"
        seen["hits"] += summary["hit_tokens"]
        seen["preemptions"] += summary["preemptions"]
        seen["shared"] += engine.shared
        seen["out of sight"] += engine.out_of_sight
        seen["held back"] += engine.held_back
    wanted = {"preemptions", "out of sight", "held back"}
    assert set(+seen) == wanted | ({"hits", "shared"} if policy == "vllm-v1" else set())


def crowd(rng: random.Random) -> Trace:
    """Requests that come within 8 steps and begin like others; priorities of three kinds."""
    num = rng.randint(6, 14)
    requests = sorted(
        (rng.randint(0, 8) * 20_000_000, rng.randint(1, 25), rng.randint(1, 20)) for _ in range(num)
    )
    contents = []
    for row, (_, num_prompt, num_output) in enumerate(requests):
        num_common = rng.randint(1, num_prompt)
        rest = num_prompt + num_output - num_common
        contents.append(((rng.randint(0, 1), 0, num_common), (2 + row, 0, rest)))
    trace = trace_of(requests, contents)
    (chunk,) = trace.chunks
    priority = np.array([rng.randint(0, 2) for _ in range(num)])
    return replace(trace, chunks=(replace(chunk, priority=priority),))


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
