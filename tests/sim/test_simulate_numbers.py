"""Latencies, windows, verdicts and counts of a run, computed by hand. A step lasts STEP_NS."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hand_runs import STEP_NS, run
from random_cases import config_of, trace_of

from kvtwin.sim import simulate

STEP_MS = STEP_NS / 1e6


def test_latencies_of_two_requests_one_after_the_other(tmp_path: Path) -> None:
    """A: P 1, O 3 at 0. B: P 1, O 2 at half a step. One at a time: A ends at 3 steps, B at 5."""
    requests = [(0, 1, 3), (STEP_NS // 2, 1, 2)]
    result = run("paged", requests, tmp_path, num_slots=8, max_num_seqs=1)
    times = [
        (row["admitted_ns"], row["first_token_ns"], row["finished_ns"]) for row in result.requests
    ]
    assert times == [(0, STEP_NS, 3 * STEP_NS), (3 * STEP_NS, 4 * STEP_NS, 5 * STEP_NS)]
    summary = result.summary
    # 1 step and 3.5 steps; linear: the 99th percentile of two is 0.99 of the way.
    assert summary["ttft_ms"]["mean"] == pytest.approx(2.25 * STEP_MS)
    assert summary["ttft_ms"]["p50"] == pytest.approx(2.25 * STEP_MS)
    assert summary["ttft_ms"]["p99"] == pytest.approx((1 + 0.99 * 2.5) * STEP_MS)
    assert summary["queue_ms"]["mean"] == pytest.approx((0 + 2.5) / 2 * STEP_MS)
    assert summary["e2el_ms"]["mean"] == pytest.approx((3 + 4.5) / 2 * STEP_MS)
    assert summary["tpot_ms"]["mean"] == pytest.approx(STEP_MS)
    assert summary["itl_ms"]["mean"] == pytest.approx(STEP_MS)
    assert summary["itl_ms"]["p50"] == pytest.approx(STEP_MS, rel=0.008), "bins are 0.8 % wide"
    assert summary["output_tokens_per_s"] == pytest.approx(5 / (5 * STEP_NS / 1e9))
    assert summary["requests_per_s"] == pytest.approx(2 / (5 * STEP_NS / 1e9))
    assert (summary["loaded_end_ns"], summary["end_ns"]) == (3 * STEP_NS, 5 * STEP_NS)
    assert [row["num_waiting"] for row in result.timeline] == [1, 1, 1, 0, 0]


def test_single_tokens_have_no_gaps(tmp_path: Path) -> None:
    summary = run("paged", [(0, 4, 1), (0, 2, 1)], tmp_path, num_slots=8).summary
    nothing = {"mean": None, "p50": None, "p99": None}
    assert summary["tpot_ms"] == summary["itl_ms"] == nothing
    assert summary["ttft_ms"]["mean"] == summary["e2el_ms"]["mean"] == STEP_MS


def test_idle_time_is_free_and_counts(tmp_path: Path) -> None:
    """One step, nine of nothing, one step. The window ends when the last one is admitted."""
    result = run("paged", [(0, 1, 1), (10 * STEP_NS, 1, 1)], tmp_path, num_slots=4)
    summary = result.summary
    assert (summary["loaded_end_ns"], summary["end_ns"]) == (10 * STEP_NS, 11 * STEP_NS)
    assert summary["shares"]["reserved"] == pytest.approx(1 / 4 / 10)
    assert summary["shares_whole_run"]["reserved"] == pytest.approx(2 / 4 / 11)
    assert summary["mean_running"] == pytest.approx(1 / 10)
    assert summary["num_steps"] == 2
    assert [row["num_steps"] for row in result.timeline] == [1, 0, 1]
    assert [row["num_running"] for row in result.timeline] == [1, 0, 1]


def test_a_window_of_no_length_becomes_the_whole_run(tmp_path: Path) -> None:
    summary = run("paged", [(0, 1, 3), (0, 1, 2)], tmp_path, num_slots=8).summary
    assert summary["loaded_end_ns"] == summary["end_ns"] == 3 * STEP_NS
    assert summary["shares"] == summary["shares_whole_run"]


@pytest.mark.parametrize(
    ("num_requests", "gap_steps", "expected"),
    [
        # Each takes two steps, one arrives a step. By the last arrival at step 19, 20 have come and
        # 10 been admitted; at 9.5 steps, 10 and 5.
        (20, 1, (True, 5, 10)),
        (18, 1, (False, 4, 9)),  # nine wait: too few to say
        (40, 2, (False, 0, 0)),  # as fast as they come
    ],
)
def test_overload_is_a_queue_that_grows(
    num_requests: int, gap_steps: int, expected: tuple[bool, int, int], tmp_path: Path
) -> None:
    requests = [(row * gap_steps * STEP_NS, 1, 2) for row in range(num_requests)]
    summary = run("paged", requests, tmp_path, num_slots=8, max_num_seqs=1).summary
    found = [summary[name] for name in ("overloaded", "waiting_at_half", "waiting_at_last_arrival")]
    assert tuple(found) == expected
    assert summary["saturated"] is False


def test_a_long_queue_that_does_not_grow_is_no_overload(tmp_path: Path) -> None:
    """Forty at once, then one every two steps, just as fast as they leave."""
    requests = [(0, 1, 2)] * 40 + [(2 * step * STEP_NS, 1, 2) for step in range(1, 41)]
    summary = run("paged", requests, tmp_path, num_slots=8, max_num_seqs=1).summary
    assert summary["waiting_at_half"] == summary["waiting_at_last_arrival"] == 39
    assert summary["overloaded"] is False


@pytest.mark.parametrize(("num_last", "overloaded"), [(2, False), (3, True)])
def test_overload_is_more_than_one_in_twenty(
    num_last: int, overloaded: bool, tmp_path: Path
) -> None:
    """Thirty at once, one every two steps from step 40 to 74, and some at step 76.

    By steps 38 and 76, 20 and 39 have been admitted: 10 wait, then 11 (or 12) of 20 (or 21) more.
    """
    steps = [0] * 30 + list(range(40, 76, 2)) + [76] * num_last
    requests = [(step * STEP_NS, 1, 2) for step in steps]
    summary = run("paged", requests, tmp_path, num_slots=8, max_num_seqs=1).summary
    found = (summary["waiting_at_half"], summary["waiting_at_last_arrival"], summary["overloaded"])
    assert found == (10, 9 + num_last, overloaded)


def test_saturated_arrivals_are_not_called_overload(tmp_path: Path) -> None:
    summary = run("paged", [(0, 1, 2)] * 30, tmp_path, num_slots=8, max_num_seqs=1).summary
    assert (summary["overloaded"], summary["saturated"]) == (False, True)
    assert summary["waiting_at_last_arrival"] is None


LARGEST = {
    "orca-oracle": "the largest power of two in an empty pool",
    "orca-pow2": "the largest power of two in an empty pool",
    "no-cache": "the tokens whose activations fit into the pool's bytes",
}


@pytest.mark.parametrize(
    ("policy", "fits", "too_long", "need", "limit", "fields"),
    [
        # E = 8 is two blocks of 4; E = 9 would be three.
        ("paged", (4, 5), (4, 6), 12, 8, {"num_slots": 8, "block_size": 4}),
        # P + O = 16 is a chunk of 16; 17 would be one of 32. The largest chunk of 31 is 16.
        ("orca-oracle", (12, 4), (12, 5), 32, 16, {"num_slots": 31}),
        ("orca-pow2", (12, 3), (12, 5), 32, 16, {"num_slots": 31}),  # 12 + 4 and 12 + 8
        # E = 13, and growth by 4 may overshoot by 3. A single output token needs no growth.
        ("contiguous", (4, 10), (4, 11), 17, 16, {"num_slots": 16, "growth_tokens": 4}),
        ("contiguous", (16, 1), (17, 1), 17, 16, {"num_slots": 16, "growth_tokens": 4}),
        # 20 slots of 131,072 bytes hold the activations of 23 tokens of 110,592.
        ("no-cache", (20, 4), (20, 5), 24, 23, {"num_slots": 20}),
    ],
)
def test_rejection_starts_one_above_the_limit(
    policy: str,
    fits: tuple[int, int],
    too_long: tuple[int, int],
    need: int,
    limit: int,
    fields: dict[str, int],
    tmp_path: Path,
) -> None:
    result = run(policy, [(0, *fits), (0, *too_long)], tmp_path, max_model_len=64, **fields)
    summary = result.summary
    assert (summary["num_finished"], summary["num_rejected"]) == (1, 1)
    assert summary["rejections"] == [
        {
            "row": 1,
            "reason": f"largest need exceeds {LARGEST.get(policy, 'an empty pool')}",
            "value": need,
            "limit": limit,
        }
    ]
    accepted, rejected = result.requests
    assert (accepted["status"], rejected["status"]) == ("finished", "rejected")
    assert (accepted["need_slots"], accepted["limit_slots"]) == (None, None)
    assert (rejected["need_slots"], rejected["limit_slots"]) == (need, limit)
    assert rejected["admitted_ns"] is rejected["first_token_ns"] is rejected["finished_ns"] is None


@pytest.mark.parametrize("policy", ["static", "static-iteration", "orca-max"])
def test_reservations_of_the_maximum_reject_all_or_none(policy: str, tmp_path: Path) -> None:
    """8 slots for everybody; 7 are too few."""
    requests = [(0, 2, 2), (0, 7, 1)]
    assert run(policy, requests, tmp_path, 8, max_model_len=8).summary["num_rejected"] == 0
    result = run(policy, requests, tmp_path, 7, max_model_len=8)
    assert (result.summary["num_finished"], result.summary["num_rejected"]) == (0, 2)
    assert result.summary["end_ns"] == result.summary["num_steps"] == 0
    assert result.summary["shares"]["free"] == 1
    assert result.summary["ttft_ms"]["mean"] is None


def test_clipping_and_long_prompts_are_counted(tmp_path: Path) -> None:
    """max_model_len 9. A request's own max_tokens goes before --max-tokens 5."""
    requests = [
        (0, 1, 10, 3),  # to its own 3
        (0, 1, 10),  # to 5
        (0, 1, 10, 8),  # to its own 8, which is all that is left of 9
        (0, 1, 10, 20),  # to 8
        (0, 7, 4),  # to 2
        (0, 1, 4),  # as it is
        (0, 8, 1),  # the longest prompt
        (0, 9, 1),  # rejected: not below 9
        (0, 12, 10, 2),  # rejected, and not clipped
    ]
    result = run("paged", requests, tmp_path, num_slots=64, max_model_len=9, max_tokens=5)
    outputs = [row["num_output_tokens"] for row in result.requests if row["status"] == "finished"]
    assert outputs == [3, 5, 8, 8, 2, 4, 1]
    assert [row["trace_output_tokens"] for row in result.requests] == [r[2] for r in requests]
    assert (result.summary["num_clipped"], result.summary["num_rejected"]) == (5, 2)
    assert [(r["row"], r["value"], r["limit"]) for r in result.summary["rejections"]] == [
        (7, 9, 9),
        (8, 12, 9),
    ]
    assert {r["reason"] for r in result.summary["rejections"]} == {
        "prompt is not below max_model_len"
    }
    assert result.summary["num_output_tokens"] == sum(outputs)


def test_a_rejected_request_does_not_count_as_clipped(tmp_path: Path) -> None:
    """Cut to 3, E is 3 of 4 slots. Cut to the 8 that max_model_len leaves, E is 8: rejected."""
    requests = [(0, 1, 10, 3), (0, 1, 10)]
    summary = run("paged", requests, tmp_path, num_slots=4, max_model_len=9).summary
    assert (summary["num_clipped"], summary["num_rejected"]) == (1, 1)
    assert [(r["value"], r["limit"]) for r in summary["rejections"]] == [(8, 4)]


def test_only_the_first_rejections_are_listed_and_all_are_counted(tmp_path: Path) -> None:
    config = config_of("paged", num_gpu_blocks_override=1, block_size=4, max_model_len=64)
    summary = simulate(trace_of([(0, 10, 1)] * 33), config, tmp_path)
    assert summary["num_rejected"] == 33
    assert [rejection["row"] for rejection in summary["rejections"]] == list(range(20))


def test_the_largest_free_run_is_a_share_of_what_is_free(tmp_path: Path) -> None:
    """A: P 2, O 1. B: P 2, O 2. First [4, 8) is free; then B grows to [2, 6) and A has left."""
    requests = [(0, 2, 1), (0, 2, 2)]
    result = run("contiguous", requests, tmp_path, num_slots=8, growth_tokens=2)
    found = [
        (row["largest_free_run_slots"], row["free_run_total_slots"]) for row in result.timeline
    ]
    assert found == [(4, 4), (2, 4)]
    assert result.summary["largest_free_run_share"] == pytest.approx((4 / 4 + 2 / 4) / 2)
    full = run("paged", [(0, 4, 1)], tmp_path / "full", num_slots=4)
    assert full.summary["largest_free_run_share"] is None, "nothing was ever free"


def test_snapshots_show_who_holds_what(tmp_path: Path) -> None:
    """Two runs side by side at the first step, one of them grown at the second and last."""
    config = config_of(
        "contiguous",
        num_gpu_blocks_override=8,
        block_size=1,
        growth_tokens=2,
        cost=f"constant:{STEP_NS}",
    )
    simulate(trace_of([(0, 2, 1), (0, 2, 2)]), config, tmp_path, snapshots=True)
    lines = [
        tuple(line.values()) for line in pq.read_table(tmp_path / "snapshots.parquet").to_pylist()
    ]
    assert lines == [(STEP_NS, 0, 2, 0), (STEP_NS, 2, 2, 1), (2 * STEP_NS, 2, 4, 1)]
