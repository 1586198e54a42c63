"""A whole-prefix cache in a few places, by hand."""

from pathlib import Path
from typing import Any

from allocators import build, sequence
from hand_runs import STEP_NS, Run, run

TWO = {"max_num_seqs": 2, "max_model_len": 10}


def column(found: Run, name: str) -> list[Any]:
    return [row[name] for row in found.timeline]


def test_what_a_finished_prompt_leaves_behind(tmp_path: Path) -> None:
    """Two places of 10. The second prompt has 4 tokens in common with the first, the third 4, of which it needs one."""
    found = run(
        "slots",
        [(0, 6, 2), (3 * STEP_NS, 8, 1), (5 * STEP_NS, 4, 2)],
        tmp_path,
        20,
        contents=[((0, 0, 6),), ((0, 0, 4), (1, 0, 4)), ((0, 0, 4),)],
        **TWO,
    )
    assert [request["num_hit_tokens"] for request in found.requests] == [0, 4, 3]
    assert (found.summary["hit_tokens"], found.summary["num_prompt_tokens"]) == (7, 18)
    assert found.summary["hit_share_of_prompt_tokens"] == 7 / 18
    # Steps 2 and 4 are idle times.
    assert column(found, "num_prefill_tokens") == [6, 0, 0, 4, 0, 1, 0]
    assert column(found, "live_slots") == [0, 6, 0, 4, 0, 3, 4]
    assert column(found, "reserved_slots") == [7, 1, 0, 4, 0, 2, 1]
    assert column(found, "internal_slots") == [3, 3, 0, 2, 0, 5, 5]
    assert column(found, "cached_slots") == [0, 0, 6, 0, 8, 0, 0]
    assert column(found, "free_slots") == [10, 10, 14, 10, 12, 10, 10]
    assert found.summary["peak_used_share"] == 0.5
    assert [step[3] for step in found.decisions if step[1] == "grant"] == [0, 0, 0]


def test_a_prompt_in_use_serves_nobody(tmp_path: Path) -> None:
    """The second request begins like the first, which still runs: it computes everything in the other place."""
    found = run(
        "slots",
        [(0, 6, 4), (STEP_NS, 6, 1), (2 * STEP_NS, 6, 1)],
        tmp_path,
        20,
        contents=[((0, 0, 6),)] * 3,
        **TWO,
    )
    assert [request["num_hit_tokens"] for request in found.requests] == [0, 0, 5]
    assert [step[3] for step in found.decisions if step[1] == "grant"] == [0, 10, 10]
    assert column(found, "cached_slots") == [0, 0, 0, 6]


def test_chunks_begin_behind_the_hit(tmp_path: Path) -> None:
    """A budget of 3: 10 prompt tokens take 4 steps; with 5 of them found, 2."""
    found = run(
        "slots",
        [(0, 10, 1), (4 * STEP_NS, 10, 1)],
        tmp_path,
        12,
        contents=[((0, 0, 10),), ((0, 0, 5),)],
        max_num_seqs=1,
        max_num_batched_tokens=3,
        max_model_len=12,
    )
    assert column(found, "num_prefill_tokens") == [3, 3, 3, 1, 3, 2]
    assert column(found, "live_slots") == [0, 3, 6, 9, 5, 8]
    assert found.finished_steps == [4, 6]


def test_without_content_nothing_is_cached(tmp_path: Path) -> None:
    found = run("slots", [(0, 6, 1), (3 * STEP_NS, 6, 1)], tmp_path, 20, **TWO)
    assert found.summary["hit_tokens"] == 0
    assert column(found, "cached_slots") == [0] * len(found.timeline)


def test_requests_longer_than_a_place_are_rejected(tmp_path: Path) -> None:
    """20 slots for 3: places of 6. 4 + 4 - 1 = 7 are too many. With more places than slots there are none."""
    found = run("slots", [(0, 4, 4), (0, 4, 3)], tmp_path, 20, max_num_seqs=3, max_model_len=10)
    (rejection,) = found.summary["rejections"]
    assert (rejection["row"], rejection["value"], rejection["limit"]) == (0, 7, 6)
    none = run("slots", [(0, 1, 1)], tmp_path, 2, max_num_seqs=3, max_model_len=10)
    assert none.summary["rejections"][0]["limit"] == 0


def test_a_prompt_that_leaves_early_is_kept_as_far_as_it_was_computed() -> None:
    pool = build("slots", 20, **TWO)
    seq = sequence(0, 6, 2, ((0, 0, 6),))
    assert pool.admit(seq, 2, others_running=False)
    assert pool.extend(seq, 3)
    pool.free(seq)
    assert pool.num_hit_tokens(sequence(1, 6, 2, ((0, 0, 6),))) == 3
    assert (pool.cached_runs(), pool.free_runs()) == ([(0, 3)], [(3, 17)])


def test_the_place_left_earliest_is_taken_if_nothing_is_in_common() -> None:
    pool = build("slots", 40, max_num_seqs=4, max_model_len=10)
    seqs = [sequence(row, 4, 1, ((row, 0, 4),)) for row in range(3)]
    for seq in seqs:
        assert pool.admit(seq, 4, others_running=True)
    for row in (1, 2, 0):
        pool.free(seqs[row])
    taken = []
    for row in range(3, 7):
        stranger = sequence(row, 4, 1, ((9, row * 9, 4),))
        assert pool.admit(stranger, 4, others_running=True)
        taken += pool.runs(stranger)
    assert taken == [(30, 10), (10, 10), (20, 10), (0, 10)]  # never used, then by when it was left
    assert not pool.fits(sequence(7, 4, 1), 4, True)
