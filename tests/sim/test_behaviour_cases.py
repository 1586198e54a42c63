"""What users saw their engines do at admission, and what the simulator says about it."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from behaviour_cases import CASES
from hand_runs import STEP_NS, Run, run
from random_cases import config_of, trace_of

from kvtwin.sim import simulate
from kvtwin.sim.policies.orca import OrcaOracle
from kvtwin.sim.requests import EXCEEDS_GRANT

C15, C16 = CASES["C15"], CASES["C16"]
POOL, TOO_LONG = C15["pool_tokens"], C15["prompt_tokens"]
MEMORY, LENGTH = "largest need exceeds an empty pool", "prompt is not below max_model_len"
# What the too long prompt with 100 tokens of output needs, and what an empty pool has. Growing by 16 may overshoot by
# 15. A static place of 8,209 slots is all of the pool, so max_model_len says no. 8,192 is the largest power of two.
REJECTED = [
    ("paged", {}, MEMORY, TOO_LONG + 99, POOL),
    ("paged", {"admission": "step"}, MEMORY, TOO_LONG + 99, POOL),
    ("paged", {"watermark": 0.2}, MEMORY, TOO_LONG + 99, POOL),
    ("contiguous", {"growth_tokens": 1}, MEMORY, TOO_LONG + 99, POOL),
    ("contiguous", {"compaction": True}, MEMORY, TOO_LONG + 99 + 15, POOL),
    ("static", {"max_model_len": POOL}, LENGTH, TOO_LONG, POOL),
    ("static-iteration", {"max_model_len": POOL}, LENGTH, TOO_LONG, POOL),
    ("orca-oracle", {}, f"{EXCEEDS_GRANT} {OrcaOracle.largest_grant_is}", 16384, 8192),
]


def numbers_in(value: Any) -> set[float]:
    """Every number in a table, in its texts, too; 7.4 % is 7.4."""
    if isinstance(value, dict):
        return {number for inner in value.values() for number in numbers_in(inner)}
    if isinstance(value, str):
        return {float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*(?:\.\d+)?", value)}
    return {float(value)}


@pytest.mark.parametrize("case_id", sorted(CASES))
def test_the_facts_are_those_that_were_collected(shared_dir: Path, case_id: str) -> None:
    cases = tomllib.loads((shared_dir / "cases/sizing.toml").read_text(encoding="utf-8"))["case"]
    (theirs,) = (case for case in cases if case["id"] == case_id)
    facts = {key: value for key, value in CASES[case_id].items() if type(value) in (int, float)}
    assert numbers_in(facts) <= numbers_in(theirs), "a number of ours is not in the collection"
    stated = {key: value for key, value in theirs.items() if key not in ("id", "ask", "note")}
    tolerances = stated.pop("tolerance", {})
    for key, value in (stated | stated.pop("answer")).items():
        if key != "answer":
            assert CASES[case_id][key] == value, key
    assert list(tolerances.values()) == [
        value for key, value in CASES[case_id].items() if key == "allowed_difference"
    ]


def without_row(result: Run, row: int) -> list[tuple[int, str, int, int, int]]:
    """The decisions, with rows numbered as if this one had not been in the trace."""
    return [
        (step, action, other - (other > row), first, num)
        for step, action, other, first, num in result.decisions
    ]


@pytest.mark.parametrize(
    ("policy", "fields", "reason", "need", "limit"),
    REJECTED,
    ids=lambda value: str(value).partition(" ")[0],
)
def test_a_prompt_above_the_pool_is_rejected_at_arrival(
    policy: str, fields: dict[str, Any], reason: str, need: int, limit: int, tmp_path: Path
) -> None:
    """Between two that fit, and nobody notices it: not the queue, not the pool, not the neighbours."""
    assert not C15["servable"]
    first, last = (0, 100, 20), (3 * STEP_NS, 300, 30)
    setting = {"num_slots": POOL, "max_model_len": 16384} | fields
    requests = [first, (STEP_NS, TOO_LONG, 100), last]
    result = run(policy, requests, tmp_path / "with", **setting)
    alone = run(policy, [first, last], tmp_path / "without", **setting)

    assert result.summary["rejections"] == [
        {"row": 1, "reason": reason, "value": need, "limit": limit}
    ]
    row = result.requests[1]
    assert (row["status"], row["need_slots"], row["limit_slots"]) == ("rejected", need, limit)
    assert row["admitted_ns"] is row["first_token_ns"] is row["finished_ns"] is None
    assert (result.summary["num_finished"], result.summary["num_rejected"]) == (2, 1)
    assert result.timeline == alone.timeline
    assert without_row(result, 1) == alone.decisions
    finished_ns = [row["finished_ns"] for row in result.requests if row["status"] == "finished"]
    assert finished_ns == [row["finished_ns"] for row in alone.requests]


@pytest.mark.parametrize("policy", ["static", "static-iteration"])
def test_a_pool_below_one_static_place_serves_nobody(policy: str, tmp_path: Path) -> None:
    """Places of 10,000 slots: there is none in this pool, not even for one token. The run ends all the same."""
    result = run(policy, [(0, 1, 1), (STEP_NS, TOO_LONG, 1)], tmp_path, POOL, max_model_len=10_000)
    assert [(row["need_slots"], row["limit_slots"]) for row in result.requests] == [
        (10_000, POOL),
        (10_000, POOL),
    ]
    assert (result.summary["num_rejected"], result.summary["num_steps"]) == (2, 0)


@pytest.mark.parametrize(
    ("policy", "fields", "fitting", "peak_slots", "too_large", "need"),
    [
        # P + O - 1 tokens are committed: 8,000 + 210 - 1 = 8,209.
        ("paged", {}, (8000, 210), POOL, (8000, 211), POOL + 1),
        ("paged", {}, (POOL, 1), POOL, (POOL + 1, 1), POOL + 1),
        ("contiguous", {"growth_tokens": 1}, (8000, 210), POOL, (8000, 211), POOL + 1),
        # The last growth of 16 may go 15 beyond E; a prompt of which nothing is decoded does not grow.
        ("contiguous", {}, (8000, 195), 8000 + 13 * 16, (8000, 196), POOL + 1),
        ("contiguous", {}, (POOL, 1), POOL, (POOL + 1, 1), POOL + 1),
        # One place, and a prompt must be below max_model_len.
        ("static", {"max_model_len": POOL}, (POOL - 1, 1), POOL, (POOL, 1), POOL),
        ("static-iteration", {"max_model_len": POOL}, (POOL - 1, 1), POOL, (POOL, 1), POOL),
    ],
)
def test_what_just_fits_runs_and_one_token_more_is_rejected(
    policy: str,
    fields: dict[str, Any],
    fitting: tuple[int, int],
    peak_slots: int,
    too_large: tuple[int, int],
    need: int,
    tmp_path: Path,
) -> None:
    setting = {"num_slots": POOL, "max_model_len": 16384, "max_num_batched_tokens": 16384} | fields
    requests = [(0, *fitting), (0, *too_large)]
    result = run(policy, requests, tmp_path, **setting)
    fits, rejected = result.requests
    # A prompt takes one step, and every further token one more.
    assert (fits["status"], fits["finished_ns"]) == ("finished", fitting[1] * STEP_NS)
    assert (fits["num_output_tokens"], fits["num_preemptions"]) == (fitting[1], 0)
    assert (rejected["status"], rejected["need_slots"], rejected["limit_slots"]) == (
        "rejected",
        need,
        POOL,
    )
    assert result.summary["peak_used_share"] == pytest.approx(peak_slots / POOL, abs=1e-9)


def test_admission_by_the_first_chunk_thrashes(tmp_path: Path) -> None:
    """60 prompts of 2,500 blocks; 51 of them leave 2,034 blocks, on which those 51 decode.

    A chunk takes about 512 blocks, so the 52nd gets room for at most three of its five and then none, again and again,
    until the first one finishes. By the whole prompt it waits for that.
    """
    case, setting = C16, C16["run"]
    blocks_per_prompt = case["prompt_tokens"] // setting["block_tokens"]
    num_resident, blocks_left = divmod(setting["pool_blocks"], blocks_per_prompt)
    assert num_resident == int(1 / case["pool_share_per_prompt"]) == case["resident_prompts"]
    assert blocks_per_prompt / setting["pool_blocks"] == pytest.approx(
        case["pool_share_per_prompt"], rel=1e-4
    )
    assert blocks_left == 2034
    trace = trace_of(
        [(0, case["prompt_tokens"], setting["output_tokens"])] * setting["num_requests"]
    )
    runs = {}
    for admission in ("full", "step"):
        config = config_of(
            model="llama-3.1-8b",
            gpu="a100-80gb",
            tensor_parallel_size=8,
            cost="roofline",  # a step that computes a lost chunk takes longer than one that does not
            admission=admission,
            block_size=setting["block_tokens"],
            num_gpu_blocks_override=setting["pool_blocks"],
            max_num_batched_tokens=setting["max_num_batched_tokens"],
        )
        directory = tmp_path / admission
        summary = simulate(trace, config, directory)
        assert summary["num_finished"] == setting["num_requests"]
        runs[admission] = (
            summary,
            *(
                pq.read_table(directory / f"{name}.parquet").to_pydict()
                for name in ("requests", "timeline")
            ),
        )
    fifty_second = num_resident  # row, from 0

    full, requests, timeline = runs["full"]
    assert full["preemptions"] == 0
    assert max(timeline["num_running"]) == num_resident
    assert requests["admitted_ns"][fifty_second] == min(requests["finished_ns"])

    step, requests, _ = runs["step"]
    assert requests["admitted_ns"][fifty_second] < min(requests["finished_ns"])
    preemptions = requests["num_preemptions"]
    assert preemptions[fifty_second] == step["preemptions"] > 10
    # It loses one to three chunks each time; a chunk is what 8,192 tokens leave beside 51 decodes.
    smallest_chunk = setting["max_num_batched_tokens"] - num_resident
    lost_each_time = step["recomputed_tokens"] / step["preemptions"]
    assert smallest_chunk <= lost_each_time <= 3 * setting["max_num_batched_tokens"]
    # The same tokens came out, and the prompts were computed 1.7 times.
    assert step["num_output_tokens"] == full["num_output_tokens"]
    assert step["num_prefill_tokens"] - full["num_prefill_tokens"] == step["recomputed_tokens"]
    assert step["output_tokens_per_s"] < 0.9 * full["output_tokens_per_s"]
