"""The sentence that says what held the number of requests that run together."""

from typing import Any

from fabricated import SHARES, summary

from kvtwin.analysis.waiting import held_by

NOBODY = dict.fromkeys(summary("paged")["waiting_shares"], 0.0)


def waited(policy: str, /, **shares: float) -> dict[str, Any]:
    return summary("paged", policy=policy, waiting_shares=NOBODY | shares)


def test_a_run_alone_gives_every_cause_its_share() -> None:
    assert held_by([waited("paged", max_num_seqs=0.037, memory=0.9631)]) == (
        "Of the loaded window, the next in line waited 96.3 % for memory and 3.7 % for --max-num-seqs."
    )
    seldom = waited("paged", memory=0.0099, max_num_batched_tokens=0.01)
    assert held_by([seldom]) == (
        "Of the loaded window, the next in line waited 1.0 % for --max-num-batched-tokens."
    )
    nothing = "Nobody waited for room: the load alone says how many run together."
    assert held_by([waited("paged", memory=0.0099)]) == nothing


def test_policies_share_what_they_waited_for_most() -> None:
    summaries = [
        waited("static", batch=0.9, memory=0.1),
        waited("one", memory=0.6, max_num_seqs=0.4),
        waited("two", memory=0.75),
        waited("three"),
    ]
    assert held_by(summaries) == (
        "The next in line waited mostly for the batch to end in static (90.0 % of the loaded window) and for memory in "
        "one and two (60.0 % to 75.0 % of the loaded window); nobody waited for room in three."
    )
    assert held_by([waited("one"), waited("two")]) == "Nobody waited for room in any of them."


def test_who_finished_nothing_is_left_out() -> None:
    failed = waited("failed", memory=1.0) | {"num_finished": 0}
    assert held_by([failed]) == ""
    assert held_by([failed, waited("one", memory=0.5)]) == (
        "The next in line waited mostly for memory in one (50.0 % of the loaded window)."
    )
    assert len(SHARES) == 3
