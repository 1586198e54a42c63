"""The answer in one sentence."""

from collections.abc import Callable, Sequence

from .verdict_clauses import Summary, join, lead, left_out, percent, rate, running, saved, spread

ROOMY = 0.1  # share of the pool that is free or cached on average where memory is no limit
NEARLY_FULL = 0.9  # share of the pool: memory may have been what somebody waited for
SAME = 0.995  # of the best: as good as it, as close as that are two policies that do the same
UNLIKE_HITS = (
    0.01  # of the prompt tokens: found by one and not by another, they are work of one alone
)


def comparison_verdict(summaries: Sequence[Summary]) -> str:
    """Which policy keeps most of the pool live, by how much, and what that means for batching.

    Policies that keep no KV (no-cache) or finished no request do not compete.
    """
    ran = [s for s in summaries if s["num_finished"] > 0 and _live(s) > 0]
    if not any(s["num_finished"] for s in summaries):
        return f"No policy finished any of the {summaries[0]['num_requests']:,} requests."
    if not ran and any(s["num_finished"] and _keeps_kv(s) for s in summaries):
        return (
            "Nobody had to wait, and the loaded window is over before anything is computed: there is nothing to compare"
            f"{left_out([], summaries)}."
        )
    if not ran:
        return (
            "No policy that finished a request keeps a KV cache, so there is nothing to compare"
            f"{left_out([], summaries)}."
        )
    if len({_frees_windows(s) for s in ran}) > 1:
        return _of_windows(ran, summaries)
    if _unlike_hits(ran):
        return _of_hits(ran, summaries)
    # Where the best leaves a good part of the pool free, memory does not limit it, and live shares tell how much there
    # was to do. Then what counts is how much of the memory that a policy takes is live. What is
    # cached is nobody's: whoever wants a block gets it. So a prefix cache does not lose by filling the pool.
    roomy = _untaken(max(ran, key=_live)) >= ROOMY
    score = _live_of_taken if roomy else _live
    ranked = sorted(ran, key=score, reverse=True)
    best, others = ranked[0], ranked[1:]
    equals = [s for s in others if score(s) >= SAME * score(best)]
    behind = others[len(equals) :]
    winners = [best, *equals]
    if not behind:
        said = _all_equal(winners, spread(winners, score), roomy) if equals else _alone(best)
        return f"{said}{saved(summaries)}{left_out(winners, summaries)}."
    names = join([s["policy"] for s in winners])
    verb = "keep" if equals else "keeps"
    takes = "they take" if equals else "it takes"
    what = f"of the memory {takes}" if roomy else "of the KV pool"
    next_best, worst = behind[0], behind[-1]
    leads = f"{lead(score(best), score(next_best))} {_named(next_best, score)}"
    against = f"{running(next_best)} in {next_best['policy']}"
    if worst is not next_best:
        leads += f" and {lead(score(best), score(worst))} {_named(worst, score)}"
        against += f" and {running(worst)} in {worst['policy']}"
    room = _room(best) if roomy else ""
    rejections = left_out([*winners, next_best, worst], summaries)
    return (
        f"{names} {verb} {spread(winners, score)} {what} live, {leads}; "
        f"{running(best)} requests run together on average, against {against}{room}{saved(summaries)}{rejections}."
    )


def _of_windows(ran: Sequence[Summary], summaries: Sequence[Summary]) -> str:
    """Whoever keeps what is behind a window has more that is live, and none of it is of use: batches are compared."""
    ranked = sorted(ran, key=_mean_running, reverse=True)
    winners = [s for s in ranked if running(s) == running(ranked[0])]
    behind = ranked[len(winners) :]
    fullest = max(_most_used(s) for s in ran)
    if fullest < NEARLY_FULL:  # who answers sooner runs fewer together
        return (
            f"Memory limits none of them, at most {percent(fullest)} of the pool is in use: "
            f"{running(ranked[0])} requests run together on average in {_join_running(ranked)}"
            f"{saved(summaries)}{left_out(ranked, summaries)}."
        )
    said = f"{join([s['policy'] for s in winners])} {'run' if winners[1:] else 'runs'} {running(winners[0])} requests"
    said += f"{' each' if winners[1:] else ''} together on average"
    shown = behind[:1] + behind[1:][-1:]
    if shown:
        leads = [
            f"{_mean_running(winners[0]) / _mean_running(s):,.1f} times {s['policy']} ({running(s)})"
            for s in shown
        ]
        said += f" in the same memory, {join(leads)}"
    keepers = [s["policy"] for s in ran if not _frees_windows(s)]
    verb = "keep" if keepers[1:] else "keeps"
    said += f"; what {join(keepers)} {verb} behind windows counts as live and is never read"
    return f"{said}{saved(summaries)}{left_out([*winners, *shown], summaries)}."


def _of_hits(ran: Sequence[Summary], summaries: Sequence[Summary]) -> str:
    """Whoever finds prompts in the pool has less to compute, is done sooner, and so has fewer running and less live."""
    ranked = sorted(ran, key=_tokens_per_s, reverse=True)
    winners = [s for s in ranked if _tokens_per_s(s) >= SAME * _tokens_per_s(ranked[0])]
    behind = ranked[len(winners) :]
    said = f"{join([s['policy'] for s in winners])} {'generate' if winners[1:] else 'generates'} "
    said += spread(winners, _tokens_per_s, rate)
    said += "" if all(s["calibrated"] for s in ran) else " (uncalibrated)"
    shown = behind[:1] + behind[1:][-1:]
    leads = [
        f"{_tokens_per_s(winners[0]) / _tokens_per_s(s):,.2f} times {s['policy']} ({rate(_tokens_per_s(s))})"
        for s in shown
    ]
    said += f", {join(leads)}" if leads else ""
    most = max(ran, key=_hits)
    least = min(ran, key=lambda s: (_hits(s), -_tokens_per_s(s)))
    said += (
        f"; the median first token comes after {_first_token_ms(most)} in {most['policy']} and "
        f"{_first_token_ms(least)} in {least['policy']}; {running(most)} requests run together on average, "
        f"against {running(least)}"
    )
    if _mean_running(most) < _mean_running(least):
        said += ": with less to compute each is done sooner"
    return f"{said}{saved(summaries)}{left_out([*winners, *shown], summaries)}."


def run_verdict(summary: Summary) -> str:
    """The same for a single run."""
    if summary["num_finished"] == 0:
        return (
            f"{summary['policy']} finished none of {summary['num_requests']:,} requests: "
            f"{summary['num_rejected']:,} were rejected."
        )
    if _live(summary) == 0 and _keeps_kv(summary):
        return (
            f"{summary['policy']} had all {summary['num_finished']:,} requests admitted before anything was computed: "
            "the loaded window shows nothing of the KV pool."
        )
    if _live(summary) == 0:
        return (
            f"{summary['policy']} keeps no KV cache; {running(summary)} requests run together "
            f"on average, and {summary['recomputed_tokens']:,} tokens were computed again."
        )
    return f"{_alone(summary)}{saved([summary])}{left_out([summary], [summary])}."


def _alone(summary: Summary) -> str:
    shares = summary["shares"]
    lost, share = max(((n, s) for n, s in shares.items() if n != "live"), key=lambda item: item[1])
    return (
        f"{summary['policy']} keeps {percent(_live(summary))} of the KV pool live and runs "
        f"{running(summary)} requests together on average; most of the rest is "
        f"{lost} ({percent(share)})"
    )


def _all_equal(summaries: Sequence[Summary], live: str, roomy: bool) -> str:
    what = "of the memory they take live" if roomy else "of the KV pool live"
    return (
        f"{join([s['policy'] for s in summaries])} keep {live} {what}; "
        f"{join([running(s) for s in summaries])} requests run together on average"
    )


def _named(summary: Summary, score: Callable[[Summary], float]) -> str:
    return f"{summary['policy']} ({percent(score(summary))})"


def _room(summary: Summary) -> str:
    untaken = _untaken(summary)
    if untaken < ROOMY:
        return ""
    free = "free or cached" if summary["shares"]["cached"] else "free"
    return (
        f"; {summary['policy']} leaves {percent(untaken)} of the pool {free} on average, "
        f"at most {percent(summary['peak_used_share'])} in use"
    )


def _live_of_taken(summary: Summary) -> float:
    return _live(summary) / (1 - _untaken(summary) - float(summary["shares"]["external"]))


def _untaken(summary: Summary) -> float:
    """Share of the pool that whoever wants it gets."""
    shares = summary["shares"]
    return float(shares["free"]) + float(shares["cached"])


def _live(summary: Summary) -> float:
    return float(summary["shares"]["live"])


def _join_running(ranked: Sequence[Summary]) -> str:
    """The first one's number has been said."""
    first, *others = ranked
    return join([first["policy"], *(f"{running(s)} in {s['policy']}" for s in others)])


def _most_used(summary: Summary) -> float:
    """Share of the pool that was granted, or of no use to who waited."""
    return float(summary["peak_used_share"]) + float(summary["shares"]["external"])


def _keeps_kv(summary: Summary) -> bool:
    """Whether anything was ever live; without a cache nothing is."""
    return float(summary["shares_whole_run"]["live"]) > 0


def _frees_windows(summary: Summary) -> bool:
    return any(window is not None for window in summary["group_windows"])


def _unlike_hits(summaries: Sequence[Summary]) -> bool:
    hits = [_hits(s) for s in summaries]
    return max(hits) - min(hits) >= UNLIKE_HITS


def _hits(summary: Summary) -> float:
    return float(summary["hit_share_of_prompt_tokens"])


def _first_token_ms(summary: Summary) -> str:
    return f"{summary['ttft_ms']['p50']:,.0f} ms"


def _tokens_per_s(summary: Summary) -> float:
    return float(summary["output_tokens_per_s"])


def _mean_running(summary: Summary) -> float:
    return float(summary["mean_running"])
