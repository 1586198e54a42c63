"""The V1 policies in runs: against `paged`, which has another scheduler, and by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from example_counts import examples
from hand_runs import run
from hypothesis import given, settings
from random_cases import config_of, configs, run_files, trace_of, traces

from kvtwin.sim import RunConfig, simulate
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


def test_what_is_computed_again_is_prefill_to_its_last_token(
    costs: list[str], tmp_path: Path
) -> None:
    """Request 1 is preempted with 40 + 1 tokens, of which the last step computes one alone when it has returned."""
    (cost,) = (path for path in costs if path.endswith("fractions.json"))
    found = [
        run(
            policy,
            [(0, 12, 12), (0, 40, 2)],
            tmp_path / policy,
            num_slots=num_slots,
            block_size=2,
            max_num_seqs=2,
            max_num_batched_tokens=6,
            max_model_len=81,
            admission="step",
            watermark=0.0,
            cost=cost,
        )
        for policy, num_slots in (("paged", 60), ("vllm-v1-no-caching", 62))
    ]
    assert found[0].summary["preemptions"] == 1
    assert found[0].requests[1]["num_preemptions"] == 1
    one, other = ([row["finished_ns"] for row in made.requests] for made in found)
    assert one == other
    # 12 + 40 tokens, and 41 again; what is generated and not computed again is decoded.
    assert {made.summary["num_prefill_tokens"] for made in found} == {12 + 40 + 41}
    assert {made.summary["num_decode_tokens"] for made in found} == {11}


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


def test_whole_prompts_wait_for_a_step_that_holds_them(tmp_path: Path) -> None:
    """A budget of 10 for prompts of 6: in chunks, the second one begins with 4 tokens in the first step."""
    for is_chunked, steps in ((True, [1, 2, 2]), (False, [1, 2, 3])):
        made = run(
            "vllm-v1-no-caching",
            [(0, 6, 1)] * 3,
            tmp_path / str(is_chunked),
            num_slots=40,
            max_model_len=10,
            max_num_batched_tokens=10,
            max_num_seqs=4,
            enable_chunked_prefill=is_chunked,
        )
        assert made.finished_steps == steps


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
            "-tokens is 256; with --no-enable-chunked-prefill it must be at least --max-model-len .300.",
        ),
        (
            {"long_prefill_token_threshold": 301},
            "--long-prefill-token-threshold is 301; it must be at most --max-model-len .300.",
        ),
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
