"""The V1 policies by hand: watermark, orders of reuse, thresholds, admissions, returns and a closed loop."""

from pathlib import Path

import pytest
from hand_runs import STEP_NS, run
from session_runs import loop, sessions_of, steps


@pytest.mark.parametrize(
    ("num_blocks", "watermark", "num_prompt_tokens", "waits"),
    [
        (20, 0.1, 7, False),  # 2 of 20 blocks are held back, of 9 that are free beside the first
        (20, 0.1, 8, True),  # the null block counts among the 20
        (19, 0.1, 7, False),  # int(1.9)
        (19, 0.1, 8, True),
        (20, 0.0, 9, False),
    ],
)
def test_what_a_watermark_holds_back_is_external(
    num_blocks: int, watermark: float, num_prompt_tokens: int, waits: bool, tmp_path: Path
) -> None:
    """Blocks of a token. The first request has 10 and takes another one in the second step, its last."""
    made = run(
        "vllm-v1-no-caching",
        [(0, 10, 2), (0, num_prompt_tokens, 1)],
        tmp_path,
        num_slots=num_blocks,
        watermark=watermark,
    )
    assert made.finished_steps == [2, 3 if waits else 1]
    kept = int(watermark * num_blocks)
    expected = [kept, kept, 0] if waits else [0, 0]
    assert [row["external_slots"] for row in made.timeline] == expected
    assert [row["num_waiting"] for row in made.timeline] == ([1, 1, 0] if waits else [0, 0])


@pytest.mark.parametrize(
    ("policy", "free_order", "taken"),
    [
        # The first request leaves blocks 1, 2 and 3, of which 1 and 2 are full, and gives back the last one first.
        ("vllm-v1-no-caching", "front", [3, 2, 1, 4]),
        ("vllm-v1-no-caching", "back", [4, 5, 3, 2]),
        ("vllm-v1", "front", [3, 4, 5, 2]),
        ("vllm-v1", "back", [4, 5, 3, 2]),
    ],
)
def test_which_blocks_are_reused_first(
    policy: str, free_order: str, taken: list[int], tmp_path: Path
) -> None:
    """5 blocks of 2 and the null block. Nothing is found: the trace says of no content that it is like another."""
    made = run(
        policy,
        [(0, 5, 1), (10**9, 8, 1)],
        tmp_path,
        num_slots=12,
        block_size=2,
        free_order=free_order,
    )
    assert [
        first for _, action, row, first, _ in made.decisions if (action, row) == ("grant", 1)
    ] == taken


def test_a_threshold_cuts_prompts_unless_one_is_alone(tmp_path: Path) -> None:
    """Prompts of 9 in chunks of 4 are 3 steps; alone, one."""
    for arrivals, finished in (((0, 0), [3, 3]), ((0, 10), [1, 11])):
        made = run(
            "vllm-v1-no-caching",
            [(at * STEP_NS, 9, 1) for at in arrivals],
            tmp_path / str(arrivals),
            num_slots=40,
            long_prefill_token_threshold=4,
        )
        assert made.finished_steps == finished


@pytest.mark.parametrize(("admission", "finished"), [("full", [2, 4]), ("step", [2, 3])])
def test_a_whole_prompt_must_fit_unless_told_otherwise(
    admission: str, finished: list[int], tmp_path: Path
) -> None:
    """11 blocks of a token, of which the first request has 5 in its second and last step, and 4 tokens in a step.

    The second request has 7. The 3 that the budget leaves fit beside the first; all of it does not.
    """
    made = run(
        "vllm-v1-no-caching",
        [(0, 4, 2), (1, 7, 1)],
        tmp_path,
        num_slots=12,
        max_num_batched_tokens=4,
        max_num_seqs=4,
        admission=admission,
    )
    assert made.finished_steps == finished


def test_what_a_preempted_request_finds_again_is_not_computed_again(tmp_path: Path) -> None:
    """10 blocks of 2, two prompts of 8 and 5 tokens each. Two steps on, both have 10 tokens, which is the whole pool.

    The second request leaves its 5 full blocks, the last one first in line, and the first request takes that. When this
    has ended, behind step 5, the second finds 8 of its 10 tokens and computes 3: its fourth token comes with step 6.
    """
    made = run("vllm-v1", [(0, 8, 5), (0, 8, 5)], tmp_path, num_slots=22, block_size=2)
    assert (made.summary["preemptions"], made.summary["recomputed_tokens"]) == (1, 2)
    assert made.finished_steps == [5, 7]
    assert [row["num_hit_tokens"] for row in made.requests] == [0, 0], "of the first admission"


def test_who_comes_while_a_step_lasts_waits_at_its_end(tmp_path: Path) -> None:
    made = run("vllm-v1", [(0, 1, 2), (1, 1, 1)], tmp_path, num_slots=9, max_num_seqs=1)
    assert [row["num_waiting"] for row in made.timeline] == [1, 1, 0]


@pytest.mark.parametrize("is_async", [False, True])
def test_calls_of_a_closed_loop_come_after_answers(is_async: bool, tmp_path: Path) -> None:
    """Two steps each; the second call thinks for 3 steps behind the first. A third request of 9 steps runs beside."""
    trace = sessions_of(
        (0, 1, 2, 0, 0, -1, -1, -1), (0, 1, 9, -1, 0, -1, -1, -1), (1, 1, 2, 0, 1, 0, 3, -1)
    )
    found = loop(trace, tmp_path, "vllm-v1", async_scheduling=is_async)
    assert steps(found["arrival_ns"]) == [0, 0, 5]
    assert steps(found["finished_ns"]) == [2, 9, 7]
