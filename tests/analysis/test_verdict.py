"""The one sentence that answers the question."""

from typing import Any

import pytest
from fabricated import SHARES, summary

from kvtwin.analysis.verdict import comparison_verdict, run_verdict


def with_live(policy: str, live: float, /, **changed: Any) -> dict[str, Any]:
    shares = dict.fromkeys(summary(policy)["shares"], 0.0) | {"live": live, "reserved": 1 - live}
    return summary(policy, **({"shares": shares, "shares_whole_run": shares} | changed))


def test_best_next_and_worst_are_named_with_their_batches() -> None:
    assert comparison_verdict([summary(policy) for policy in SHARES]) == (
        "paged keeps 95.0 % of the KV pool live, 1.6 times contiguous (60.0 %) and 5.0 times "
        "orca-max (19.0 %); 34.2 requests run together on average, against 20.2 in contiguous "
        "and 7.0 in orca-max."
    )


def test_the_order_of_the_policies_does_not_matter() -> None:
    summaries = [summary(policy) for policy in SHARES]
    assert comparison_verdict(summaries) == comparison_verdict(summaries[::-1])


def test_next_is_not_named_twice_when_it_is_the_worst_too() -> None:
    assert comparison_verdict([summary("paged"), summary("orca-max")]) == (
        "paged keeps 95.0 % of the KV pool live, 5.0 times orca-max (19.0 %); "
        "34.2 requests run together on average, against 7.0 in orca-max."
    )


def test_a_small_lead_is_given_in_points() -> None:
    verdict = comparison_verdict([with_live("paged", 0.95), with_live("contiguous", 0.93)])
    assert "95.0 % of the KV pool live, 2.0 points more than contiguous (93.0 %);" in verdict


def test_equals_share_the_first_place() -> None:
    summaries = [with_live("paged", 0.9), with_live("contiguous", 0.9001), summary("orca-max")]
    assert comparison_verdict(summaries).startswith(
        "contiguous and paged keep 90.0 % each of the KV pool live, 4.7 times orca-max"
    )
    assert comparison_verdict(summaries[:2]) == (
        "contiguous and paged keep 90.0 % each of the KV pool live; "
        "20.2 and 34.2 requests run together on average."
    )


def test_live_shares_do_not_count_where_some_free_what_is_behind_a_window() -> None:
    def windowed(policy: str, mean_running: float) -> dict[str, Any]:
        # Less of it is live than of paged's.
        changed = {"policy": policy, "mean_running": mean_running, "group_windows": [None, 128]}
        return with_live("paged", 0.5, **changed)

    paged, orca = summary("paged"), summary("orca-max")
    assert comparison_verdict([paged, orca, windowed("vllm-v1", 51.3)]) == (
        "vllm-v1 runs 51.3 requests together on average in the same memory, 1.5 times paged (34.2) and 7.3 times "
        "orca-max (7.0); what paged and orca-max keep behind windows counts as live and is never read."
    )
    assert comparison_verdict([paged, windowed("vllm-v1", 34.2)]) == (
        "paged and vllm-v1 run 34.2 requests each together on average; what paged keeps behind windows counts as live "
        "and is never read."
    )
    # Who answers sooner runs fewer together: where there is room for all, that is no loss.
    roomy = [s | {"peak_used_share": 0.42} for s in (paged, windowed("vllm-v1", 21.3))]
    shares = {"shares": paged["shares"] | {"external": 0.0}}
    assert comparison_verdict([s | shares for s in roomy]) == (
        "Memory limits none of them, at most 42.0 % of the pool is in use: 34.2 requests run together on average in "
        "paged and 21.3 in vllm-v1."
    )
    assert comparison_verdict([windowed("one", 9.0), windowed("two", 8.0)]).startswith(
        "one and two keep"
    )


@pytest.mark.parametrize(
    ("peaks", "external", "at_most"),
    [
        ((0.899, 0.42), 0.0, "89.9 %"),
        ((0.9, 0.42), 0.0, ""),
        ((0.42, 0.9), 0.0, ""),  # it is enough that one of them is full
        ((0.85, 0.42), 0.049, "89.9 %"),
        ((0.85, 0.42), 0.05, ""),  # a pool in pieces is full, too
    ],
)
def test_batches_of_windows_are_compared_where_a_pool_is_nearly_full(
    peaks: tuple[float, float], external: float, at_most: str
) -> None:
    shares = summary("paged")["shares"] | {"external": 0.0}
    kept = summary("paged", shares=shares | {"external": external}, peak_used_share=peaks[0])
    freed = summary("paged", shares=shares, peak_used_share=peaks[1], group_windows=[None, 128])
    verdict = comparison_verdict([kept, freed | {"policy": "vllm-v1", "mean_running": 51.3}])
    roomy = f"Memory limits none of them, at most {at_most} of the pool is in use: 51.3 requests"
    full = "vllm-v1 runs 51.3 requests together on average in the same memory, 1.5 times paged"
    assert verdict.startswith(roomy if at_most else full)


def test_a_loaded_window_of_no_length_compares_nothing() -> None:
    """Who is served at once ends it before anything is live; without a cache nothing ever is."""
    nothing = {"shares": dict.fromkeys(summary("paged")["shares"], 0.0)}
    verdict = comparison_verdict([summary("paged") | nothing])
    assert verdict.startswith("Nobody had to wait, and the loaded window is over")
    alone = run_verdict(summary("paged") | nothing)
    assert alone.startswith("paged had all 3 requests admitted before anything was computed")
    nothing |= {"shares_whole_run": nothing["shares"]}
    assert run_verdict(summary("paged") | nothing).startswith("paged keeps no KV cache")


def test_points_are_those_between_the_shares_that_are_shown() -> None:
    verdict = comparison_verdict([with_live("paged", 0.72044), with_live("contiguous", 0.71551)])
    assert "72.0 % of the KV pool live, 0.4 points more than contiguous (71.6 %);" in verdict


def test_policies_that_are_as_close_as_noise_are_not_ranked() -> None:
    close = [with_live("paged", 0.946), with_live("contiguous", 0.9415)]
    assert comparison_verdict([*close, summary("orca-max")]).startswith(
        "paged and contiguous keep 94.2 % to 94.6 % of the KV pool live, 5.0 times orca-max"
    )
    assert comparison_verdict([close[0], with_live("contiguous", 0.9405)]).startswith("paged keeps")


def test_a_policy_without_a_cache_does_not_compete() -> None:
    no_cache = with_live("orca-max", 0.0, policy="no-cache")
    assert "no-cache" not in comparison_verdict([no_cache, summary("paged"), summary("orca-max")])
    assert "nothing to compare" in comparison_verdict([no_cache])


def test_no_policy_finished_anything() -> None:
    nothing = [summary(policy, num_finished=0, num_rejected=3) for policy in SHARES]
    assert comparison_verdict(nothing) == "No policy finished any of the 3 requests."


def test_rejections_of_every_named_policy_are_said() -> None:
    made = {policy: summary(policy, num_rejected=1, num_finished=2) for policy in SHARES}
    fine = {policy: summary(policy) for policy in SHARES}
    assert comparison_verdict([made["paged"], fine["orca-max"]]).endswith(
        "7.0 in orca-max (paged rejected 1 of 3 requests)."
    )
    assert comparison_verdict([fine["paged"], made["orca-max"]]).endswith(
        "7.0 in orca-max (orca-max rejected 1 of 3 requests)."
    )
    more = made["orca-max"] | {"num_rejected": 2, "num_finished": 1}
    assert comparison_verdict([made["paged"], fine["contiguous"], more]).endswith(
        " (paged rejected 1 of 3 requests, orca-max 2)."
    )
    assert comparison_verdict(list(made.values())).endswith(" (each rejected 1 of 3 requests).")


def test_rejections_of_a_policy_that_is_not_named_are_left_to_the_notices() -> None:
    between = with_live("contiguous", 0.3, policy="between", num_rejected=1, num_finished=2)
    summaries = [*(summary(policy) for policy in SHARES), between]
    assert "between" not in comparison_verdict(summaries)


def test_a_policy_that_rejected_everything_is_named() -> None:
    empty = dict.fromkeys(summary("paged")["shares"], 0.0) | {"free": 1.0}
    nothing = summary("contiguous", shares=empty, num_finished=0, num_rejected=3)
    assert comparison_verdict([summary("paged"), nothing, summary("orca-max")]).endswith(
        "7.0 in orca-max (contiguous rejected all 3 requests)."
    )
    assert comparison_verdict([summary("paged"), nothing]).endswith(
        "most of the rest is internal (2.0 %) (contiguous rejected all 3 requests)."
    )
    also = nothing | {"policy": "static"}
    some = summary("orca-max", num_finished=2, num_rejected=1)
    assert comparison_verdict([summary("paged"), nothing, also, some]).endswith(
        " (contiguous and static rejected all 3 requests, orca-max 1)."
    )
    no_cache = with_live("orca-max", 0.0, policy="no-cache")
    assert comparison_verdict([no_cache, nothing]).endswith(
        "nothing to compare (contiguous rejected all 3 requests)."
    )


def test_large_ratios_have_no_decimals_and_small_shares_two() -> None:
    verdict = comparison_verdict([with_live("paged", 0.95), with_live("orca-max", 0.00436)])
    assert "95.0 % of the KV pool live, 218 times orca-max (0.44 %);" in verdict
    verdict = comparison_verdict([with_live("paged", 0.95), with_live("orca-max", 0.0475)])
    assert ", 20.0 times orca-max (4.8 %);" in verdict
    verdict = comparison_verdict([with_live("paged", 0.95), with_live("orca-max", 0.046)])
    assert ", 21 times orca-max (4.6 %);" in verdict


def test_a_run_alone_says_where_the_rest_is() -> None:
    assert run_verdict(summary("orca-max")) == (
        "orca-max keeps 19.0 % of the KV pool live and runs 7.0 requests together on average; "
        "most of the rest is internal (57.5 %)."
    )


def test_a_run_alone_rejects_as_one() -> None:
    verdict = run_verdict(summary("paged", num_rejected=1, num_finished=2))
    assert verdict.endswith(
        "most of the rest is internal (2.0 %) (paged rejected 1 of 3 requests)."
    )


def test_a_run_that_finished_nothing_says_so() -> None:
    verdict = run_verdict(summary("paged", num_finished=0, num_rejected=3))
    assert verdict == "paged finished none of 3 requests: 3 were rejected."


def test_a_run_without_a_cache_says_what_that_costs() -> None:
    verdict = run_verdict(with_live("paged", 0.0, policy="no-cache", recomputed_tokens=12345))
    assert "keeps no KV cache" in verdict
    assert "12,345 tokens were computed again" in verdict


def test_where_memory_is_no_limit_it_is_the_memory_taken_that_counts() -> None:
    def taken(policy: str, live: float, reserved: float, **changed: Any) -> dict[str, Any]:
        shares = dict.fromkeys(summary(policy)["shares"], 0.0)
        shares |= {"live": live, "reserved": reserved, "free": 1 - live - reserved}
        return summary(policy, shares=shares, **changed)

    summaries = [
        taken("contiguous", 0.4, 0.1),
        taken("paged", 0.39, 0.01),
        taken("orca-max", 0.1, 0.9),
    ]
    assert comparison_verdict(summaries) == (
        "paged keeps 97.5 % of the memory it takes live, 1.2 times contiguous (80.0 %) and 9.8 times "
        "orca-max (10.0 %); 34.2 requests run together on average, against 20.2 in contiguous and 7.0 "
        "in orca-max; paged leaves 60.0 % of the pool free on average, at most 96.0 % in use."
    )


@pytest.mark.parametrize(
    ("free", "score", "room"),
    [
        (0.09, "45.0 % of the KV pool live", ""),
        (0.0999, "45.0 % of the KV pool live", ""),
        (0.1, "50.0 % of the memory it takes live", "; paged leaves 10.0 % of the pool free"),
        (0.11, "50.6 % of the memory it takes live", "; paged leaves 11.0 % of the pool free"),
    ],
)
def test_memory_is_no_limit_from_a_tenth_of_the_pool_free(
    free: float, score: str, room: str
) -> None:
    shares = dict.fromkeys(summary("paged")["shares"], 0.0)
    shares |= {"live": 0.45, "reserved": 0.55 - free, "free": free}
    verdict = comparison_verdict([summary("paged", shares=shares), summary("orca-max")])
    assert verdict.startswith(f"paged keeps {score}, ")
    assert (room in verdict, "leaves" in verdict) == (True, bool(room))


def test_memory_that_nobody_holds_is_not_taken() -> None:
    nothing = dict.fromkeys(summary("paged")["shares"], 0.0)
    held = nothing | {"live": 0.4, "reserved": 0.1, "external": 0.3, "free": 0.2}
    most_live = nothing | {"live": 0.5, "internal": 0.4, "free": 0.1}
    # 0.4 of the 0.5 that is granted against 0.5 of 0.9; external memory is free, if of no use.
    verdict = comparison_verdict(
        [summary("contiguous", shares=held), summary("orca-max", shares=most_live)]
    )
    assert verdict.startswith(
        "contiguous keeps 80.0 % of the memory it takes live, 1.4 times orca-max (55.6 %);"
    )


def test_what_a_prefix_cache_keeps_is_not_taken() -> None:
    nothing = dict.fromkeys(summary("paged")["shares"], 0.0)
    without = summary("paged", shares=nothing | {"live": 0.2, "reserved": 0.05, "free": 0.75})
    shares = nothing | {"live": 0.09, "reserved": 0.01, "cached": 0.85, "free": 0.05}
    hits = {"hit_tokens": 11, "hit_share_of_prompt_tokens": 0.0099}
    cached = summary("paged", shares=shares, policy="vllm-v1", mean_running=11.0, **hits)
    assert comparison_verdict([without, cached]) == (
        "vllm-v1 keeps 90.0 % of the memory it takes live, 1.1 times paged (80.0 %); 11.0 requests run together on "
        "average, against 34.2 in paged; vllm-v1 leaves 90.0 % of the pool free or cached on average, at most 96.0 % "
        "in use; vllm-v1 found 0.99 % of the prompt tokens cached."
    )
    # The pool is as roomy if the policy that keeps most of it live fills the rest with what it caches.
    assert comparison_verdict([cached, with_live("orca-max", 0.05)]).startswith(
        "vllm-v1 keeps 90.0 % of the memory it takes live,"
    )
    assert run_verdict(cached).endswith(
        "most of the rest is cached (85.0 %); vllm-v1 found 0.99 % of the prompt tokens cached."
    )


def test_equals_take_their_memory_together() -> None:
    nothing = dict.fromkeys(summary("paged")["shares"], 0.0)
    shares = nothing | {"live": 0.4, "reserved": 0.1, "free": 0.5}
    equals = [summary("paged", shares=shares), summary("contiguous", shares=shares)]
    assert comparison_verdict([*equals, with_live("orca-max", 0.1)]).startswith(
        "paged and contiguous keep 80.0 % each of the memory they take live, 8.0 times orca-max (10.0 %);"
    )


def test_blocks_saved_by_sharing_are_said() -> None:
    shared = summary("contiguous", policy="vllm-v0", sharing={"saved_share_of_blocks": 0.125})
    assert comparison_verdict([summary("paged"), shared]).endswith(
        "against 20.2 in vllm-v0; sharing saved vllm-v0 12.5 % of its blocks; paged served one "
        "sequence of each request."
    )
    alone = shared | {"sharing": {"saved_share_of_blocks": 0.0}}
    assert "sharing" not in run_verdict(alone)
