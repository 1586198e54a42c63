"""What the head of the queue waits for, step by step, worked out by hand. A step lasts STEP_NS."""

from pathlib import Path
from typing import Any

import pytest
from hand_runs import STEP_NS, run

POLICIES = ["paged", "vllm-v1-no-caching", "vllm-v0"]
# Of vllm-v1 one block is the null block, and vllm-v0 keeps 1 % free unless told otherwise.
NULL_BLOCKS = {"vllm-v1-no-caching": 1}


def shares(
    policy: str, directory: Path, requests: list[tuple[int, ...]], **fields: Any
) -> dict[str, float]:
    num_slots = fields.pop("num_slots") + NULL_BLOCKS.get(policy, 0)
    made = run(policy, requests, directory, num_slots, watermark=0.0, **fields)
    found = made.summary["waiting_shares"]
    assert made.summary["loaded_end_ns"] % STEP_NS == 0
    return {reason: share for reason, share in found.items() if share}


@pytest.mark.parametrize("policy", POLICIES)
def test_for_memory(policy: str, tmp_path: Path) -> None:
    """Eight slots hold the five that each needs once. The second comes when the first has gone, after three steps."""
    requests = [(0, 3, 3), (0, 6, 2)]
    assert shares(policy, tmp_path, requests, num_slots=8) == {"memory": 1.0}


@pytest.mark.parametrize("policy", POLICIES)
def test_for_memory_that_a_preemption_took(policy: str, tmp_path: Path) -> None:
    """Both fill the pool in three steps. In the fourth the later one gives way, until the first ends with the sixth."""
    requests = [(0, 4, 6), (0, 4, 6)]
    assert shares(policy, tmp_path, requests, num_slots=12) == {"memory": 0.5}


@pytest.mark.parametrize("policy", POLICIES)
def test_for_a_place(policy: str, tmp_path: Path) -> None:
    requests = [(0, 3, 3), (0, 3, 2)]
    found = shares(policy, tmp_path, requests, num_slots=100, max_num_seqs=1)
    assert found == {"max_num_seqs": 1.0}


@pytest.mark.parametrize("policy", POLICIES)
def test_for_tokens_and_then_for_a_place(policy: str, tmp_path: Path) -> None:
    """The second prompt does not fit into the first step; the third request is one too many until the first ends."""
    requests = [(0, 8, 4), (0, 8, 9), (0, 8, 2)]
    found = shares(
        policy, tmp_path, requests, num_slots=100, max_num_seqs=2, max_num_batched_tokens=8
    )
    # vllm-v0 has the second prompt in a step of its own; the others compute 7 tokens of it beside the first's second,
    # and its last in the step behind. The first ends with its fourth token: after step 4, and of vllm-v0 after step 5.
    num_steps = 5 if policy == "vllm-v0" else 4
    assert found == {
        "max_num_batched_tokens": pytest.approx(1 / num_steps),
        "max_num_seqs": pytest.approx(1 - 1 / num_steps),
    }


def test_for_the_batch(tmp_path: Path) -> None:
    """Two places: two run four steps. In the first of them memory is why the batch has no third; then it is closed."""
    requests = [(0, 3, 4), (0, 3, 2), (0, 3, 2)]
    found = shares("static", tmp_path, requests, num_slots=20, max_model_len=10)
    assert found == {"memory": 0.25, "batch": 0.75}


@pytest.mark.parametrize("policy", POLICIES)
def test_for_nothing(policy: str, tmp_path: Path) -> None:
    """The second comes in the middle of a step, and is admitted at its end."""
    requests = [(0, 3, 3), (STEP_NS // 2, 3, 2)]
    assert shares(policy, tmp_path, requests, num_slots=100) == {}


@pytest.mark.parametrize("policy", ["static", *POLICIES])
def test_idle_time_is_not_counted_as_running(policy: str, tmp_path: Path) -> None:
    """Three steps with one request, seven without any, and one with two; then nobody is to come."""
    requests = [(0, 3, 3), (10 * STEP_NS, 3, 1), (10 * STEP_NS, 3, 2), (11 * STEP_NS, 3, 2)]
    found = run(policy, requests, tmp_path, 201, max_model_len=50, watermark=0.0).summary
    late = 1 if policy == "static" else 0  # the last one is no part of the batch of those before it
    assert found["loaded_end_ns"] == (11 + late) * STEP_NS
    assert found["idle_ns"] == 7 * STEP_NS
    assert found["mean_running"] == (3 + 2 + late) / (11 + late)
    assert found["busy_mean_running"] == (3 + 2 + late) / (4 + late)


def test_a_group_on_the_host_waits_for_memory(tmp_path: Path) -> None:
    """Two of two samples each outgrow the pool: the later one is swapped out, and nobody else is in line."""
    requests = [(0, 4, 6), (0, 4, 6)]
    found = run(
        "vllm-v0", requests, tmp_path, 20, watermark=0.0, num_samples=2, sample_lengths="equal"
    )
    assert found.summary["swapping"]["num_groups_out"] == 1
    only = found.summary["waiting_shares"]
    assert 0 < only.pop("memory") < 1
    assert not any(only.values())
