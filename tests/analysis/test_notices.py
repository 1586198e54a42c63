"""What must not be overlooked, in words."""

from pathlib import Path
from typing import Any

import pytest
from fabricated import SHARES, comparison, summary
from random_cases import config_of, trace_of

from kvtwin.analysis.notices import first_rejection, notices
from kvtwin.sim import simulate

NOBODY = dict.fromkeys(summary("paged")["waiting_shares"], 0.0)


def texts(facts: dict[str, Any]) -> dict[str, str]:
    return {notice.kind: notice.text for notice in notices(facts)}


def clipped(*numbers: int, generated: int) -> str:
    """The text about clipping where each policy clipped so many, `generated` of them the trace."""
    summaries = [
        summary(policy, num_clipped=num) for policy, num in zip(SHARES, numbers, strict=False)
    ]
    return texts(comparison(*summaries, num_clipped=generated))["Clipped"]


def test_notices_name_policies_and_numbers() -> None:
    rejection = {"row": 17, "reason": "need", "value": 2100, "limit": 2048}
    facts = comparison(
        summary("orca-max", num_rejected=2, rejections=[rejection], calibrated=True),
        summary("paged", overloaded=True, waiting_at_last_arrival=1234, mean_running=230.4)
        | {"waiting_shares": NOBODY | {"memory": 0.2, "max_num_seqs": 0.7}},
        saturated=False,
        skipped={"no output": 5},
    )
    assert texts(facts) == {
        "Rejected": "orca-max: 2 of 3 requests; e.g. row 17 in orca-max, need: 2,100, limit 2,048",
        "Clipped": "none",
        "Skipped": "5 rows of the trace: no output",
        "Overloaded": "queue still growing at the last arrival (by uncalibrated step times); "
        "paged: 1,234 waiting",
        "Idle": "none",
        "Next in line waited, of the loaded window": "orca-max: for memory 90.0 %, --max-num-seqs 5.0 %; "
        "paged: for --max-num-seqs 70.0 %, memory 20.0 %",
        "Limited by max_num_seqs": "paged: 70.0 % of the loaded window, 230.4 of 256 run on average",
        "Limited by max_num_batched_tokens": "none",
        "Uncalibrated": "paged: latencies and tok/s; requests arrive over time, so mean running, "
        "shares and queues depend on these step times too",
    }


def test_a_place_of_slots_is_told_from_the_pool(tmp_path: Path) -> None:
    pool = {"num_gpu_blocks_override": 20, "block_size": 1, "max_model_len": 20}
    config = config_of("slots", max_num_seqs=2, **pool)
    assert first_rejection(simulate(trace_of([(0, 9, 3)]), config, tmp_path)) == (
        "largest need exceeds a place, the pool divided by --max-num-seqs: 11, limit 10 slots"
    )


def test_what_groups_of_layers_needed_is_told_in_blocks() -> None:
    """Their slots are smaller than a token: here 160 of them are a block of 16 tokens of one group."""
    why = "largest need exceeds an empty pool"
    rejection = {"row": 4, "reason": why, "value": 66_080, "limit": 63_840}
    grouped = {"group_windows": [1024, None], "block_slots": 160, "num_rejected": 1}
    found = summary("paged", rejections=[rejection], **grouped)
    assert texts(comparison(found))["Rejected"].endswith(
        f"{why}: 413, limit 399 blocks, each of one of 2 groups of layers"
    )
    longer = rejection | {"reason": "prompt is not below max_model_len"}
    found = summary("paged", rejections=[longer], **grouped)
    assert texts(comparison(found))["Rejected"].endswith("max_model_len: 66,080, limit 63,840")


@pytest.mark.parametrize(("idle_ns", "serious"), [(100_000_000, False), (100_000_001, True)])
def test_mean_running_is_told_apart_from_idle_time(idle_ns: int, serious: bool) -> None:
    """Of a loaded window of 2 s."""
    facts = comparison(summary("paged", mean_running=3.04, busy_mean_running=3.2, idle_ns=idle_ns))
    (found,) = (notice for notice in notices(facts) if notice.kind == "Idle")
    assert found.serious is serious
    if serious:
        assert found.text == (
            "paged: no request for 0.1 s (5.0 %) of the loaded window; in the rest 3.2 run on average, not 3.0"
        )


def test_calls_that_came_after_a_rejected_one_are_counted() -> None:
    after = summary("paged", num_rejected=1, num_calls_after_rejected=4)
    assert texts(comparison(after, summary("orca-max")))["Rejected"] == (
        "paged: 1 of 3 requests; paged: 4 calls that waited for a rejected one came all the same"
    )


def test_notices_of_a_clean_result_are_not_serious() -> None:
    facts = comparison(summary("paged", calibrated=True), summary("orca-max", calibrated=True))
    assert not any(notice.serious for notice in notices(facts))


def test_fitted_step_times_are_not_called_uncalibrated() -> None:
    growing = summary("paged", overloaded=True, waiting_at_last_arrival=12, calibrated=True)
    found = texts(comparison(growing, saturated=False))
    assert found["Overloaded"] == "queue still growing at the last arrival; paged: 12 waiting"
    assert found["Uncalibrated"] == "none"


def test_sessions_that_begin_at_once_are_not_called_served_in_time() -> None:
    together = [summary(policy, waiting_at_last_arrival=None) for policy in ("paged", "orca-max")]
    said = texts(comparison(*together, saturated=False, closed_loop={}))["Overloaded"]
    assert said == "not judged: all sessions begin at once"
    said = texts(comparison(*together, saturated=False))["Overloaded"]
    assert said == "not judged: those served arrive at once"
    assert texts(comparison(summary("paged"), saturated=False))["Overloaded"] == "none"


def test_saturated_arrivals_leave_the_step_times_to_the_latencies() -> None:
    assert texts(comparison(summary("paged")))["Uncalibrated"] == "paged: latencies and tok/s"


@pytest.mark.parametrize("limit", ["max_num_seqs", "max_num_batched_tokens"])
@pytest.mark.parametrize(("share", "serious"), [(0.2499, False), (0.25, True)])
def test_a_limit_that_many_waited_for_is_serious(limit: str, share: float, serious: bool) -> None:
    facts = comparison(summary("paged", waiting_shares=NOBODY | {limit: share}))
    found = {n.kind: n.serious for n in notices(facts) if n.kind.startswith("Limited by")}
    assert found.pop(f"Limited by {limit}") is serious
    assert list(found.values()) == [False]


def test_where_nobody_waited_nothing_is_listed() -> None:
    facts = comparison(summary("paged", waiting_shares=NOBODY | {"memory": 0.0099}))
    assert texts(facts)["Next in line waited, of the loaded window"] == "nobody waited for room"


def test_clipping_says_who_shortened_what() -> None:
    assert clipped(0, 0, generated=0) == "none"
    assert clipped(2, 2, generated=2) == "2 of 3 requests (shortened when generated)"
    assert clipped(2, 2, generated=0) == "all policies: 2 of 3 requests"
    assert clipped(3, 2, generated=2) == (
        "orca-max: 3 of 3 requests (2 of them shortened when generated); "
        "contiguous: 2 of 3 requests (shortened when generated)"
    )


def test_sequences_are_held_against_max_num_seqs_not_requests() -> None:
    facts = comparison(
        summary(
            "paged",
            mean_running=12.0,
            sharing={"mean_running_sequences": 240.0},
            waiting_shares=NOBODY | {"max_num_seqs": 0.7},
        )
    )
    assert "240.0 of 256" in texts(facts)["Limited by max_num_seqs"]


def test_one_policy_that_cannot_be_judged_hides_no_other() -> None:
    growing = summary("orca-max", overloaded=True, waiting_at_last_arrival=12, calibrated=True)
    together = summary("paged", waiting_at_last_arrival=None, calibrated=True)
    said = texts(comparison(together, growing, saturated=False))["Overloaded"]
    assert said == "queue still growing at the last arrival; orca-max: 12 waiting"
