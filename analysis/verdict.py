"""The answer in one sentence."""

from collections.abc import Callable, Sequence
from typing import Any

Summary = dict[str, Any]

ROOMY = 0.1  # share of the pool that is free or cached on average where memory is no limit
NEARLY_FULL = 0.9  # share of the pool: memory may have been what somebody waited for
WHOLE_RATIO = 20  # above, decimals of a ratio say nothing
SMALL_SHARE = 0.01  # below, one decimal of a percentage is too few to check a ratio by


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
            f"{_left_out([], summaries)}."
        )
    if not ran:
        return (
            "No policy that finished a request keeps a KV cache, so there is nothing to compare"
            f"{_left_out([], summaries)}."
        )
    if len({_frees_windows(s) for s in ran}) > 1:
        return _of_windows(ran, summaries)
    # Where the best leaves a good part of the pool free, memory does not limit it, and live shares tell how much there
    # was to do. Then what counts is how much of the memory that a policy takes is live. What is
    # cached is nobody's: whoever wants a block gets it. So a prefix cache does not lose by filling the pool.
    roomy = _untaken(max(ran, key=_live)) >= ROOMY
    score = _live_of_taken if roomy else _live
    ranked = sorted(ran, key=score, reverse=True)
    best, others = ranked[0], ranked[1:]
    equals = [s for s in others if percent(score(s)) == percent(score(best))]
    behind = others[len(equals) :]
    winners = [best, *equals]
    if not behind:
        said = _all_equal(winners) if equals else _alone(best)
        return f"{said}{_saved(summaries)}{_left_out(winners, summaries)}."
    names = join([s["policy"] for s in winners])
    verb = "keep" if equals else "keeps"
    takes = "they take" if equals else "it takes"
    what = f"of the memory {takes}" if roomy else "of the KV pool"
    next_best, worst = behind[0], behind[-1]
    lead = f"{_lead(score(best), score(next_best))} {_named(next_best, score)}"
    running = f"{_running(next_best)} in {next_best['policy']}"
    if worst is not next_best:
        lead += f" and {_lead(score(best), score(worst))} {_named(worst, score)}"
        running += f" and {_running(worst)} in {worst['policy']}"
    each = " each" if equals else ""
    room = _room(best) if roomy else ""
    left_out = _left_out([*winners, next_best, worst], summaries)
    return (
        f"{names} {verb} {percent(score(best))}{each} {what} live, {lead}; "
        f"{_running(best)} requests run together on average, against {running}{room}{_saved(summaries)}{left_out}."
    )


def _of_windows(ran: Sequence[Summary], summaries: Sequence[Summary]) -> str:
    """Whoever keeps what is behind a window has more that is live, and none of it is of use: batches are compared."""
    ranked = sorted(ran, key=_mean_running, reverse=True)
    winners = [s for s in ranked if _running(s) == _running(ranked[0])]
    behind = ranked[len(winners) :]
    fullest = max(_most_used(s) for s in ran)
    if fullest < NEARLY_FULL:  # who answers sooner runs fewer together
        return (
            f"Memory limits none of them, at most {percent(fullest)} of the pool is in use: "
            f"{_running(ranked[0])} requests run together on average in {_join_running(ranked)}"
            f"{_saved(summaries)}{_left_out(ranked, summaries)}."
        )
    said = f"{join([s['policy'] for s in winners])} {'run' if winners[1:] else 'runs'} {_running(winners[0])} requests"
    said += f"{' each' if winners[1:] else ''} together on average"
    shown = behind[:1] + behind[1:][-1:]
    if shown:
        leads = [
            f"{_mean_running(winners[0]) / _mean_running(s):,.1f} times {s['policy']} ({_running(s)})"
            for s in shown
        ]
        said += f" in the same memory, {join(leads)}"
    keepers = [s["policy"] for s in ran if not _frees_windows(s)]
    verb = "keep" if keepers[1:] else "keeps"
    said += f"; what {join(keepers)} {verb} behind windows counts as live and is never read"
    return f"{said}{_saved(summaries)}{_left_out([*winners, *shown], summaries)}."


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
            f"{summary['policy']} keeps no KV cache; {_running(summary)} requests run together "
            f"on average, and {summary['recomputed_tokens']:,} tokens were computed again."
        )
    return f"{_alone(summary)}{_saved([summary])}{_left_out([summary], [summary])}."


def _alone(summary: Summary) -> str:
    shares = summary["shares"]
    lost, share = max(((n, s) for n, s in shares.items() if n != "live"), key=lambda item: item[1])
    return (
        f"{summary['policy']} keeps {percent(_live(summary))} of the KV pool live and runs "
        f"{_running(summary)} requests together on average; most of the rest is "
        f"{lost} ({percent(share)})"
    )


def _all_equal(summaries: Sequence[Summary]) -> str:
    return (
        f"{join([s['policy'] for s in summaries])} keep {percent(_live(summaries[0]))} of the KV "
        f"pool live each; {join([_running(s) for s in summaries])} requests run together "
        f"on average"
    )


def _left_out(named: Sequence[Summary], summaries: Sequence[Summary]) -> str:
    """Who turned requests away: of the `named` policies, and of all those that finished none."""
    # Such a policy must not look good, or be missing, in silence.
    num_requests = summaries[0]["num_requests"]
    total = f"{num_requests:,} requests"
    counts = {s["num_rejected"] for s in summaries}
    if len(summaries) > 1 and len(counts) == 1 and counts != {0}:
        return f" (each rejected {counts.pop():,} of {total})"
    shown = [
        s
        for s in summaries
        if s["num_rejected"] and (s["num_finished"] == 0 or any(s is other for other in named))
    ]
    groups: dict[int, list[str]] = {}
    for summary in shown:
        groups.setdefault(summary["num_rejected"], []).append(summary["policy"])
    if not groups:
        return ""
    (num, names), *others = groups.items()
    how_many = "all" if num == num_requests else f"{num:,} of"
    more = [f", {join(names)} {num:,}" for num, names in others]
    return f" ({join(names)} rejected {how_many} {total}{''.join(more)})"


def _lead(best: float, other: float) -> str:
    # A factor close to one says nothing, and one over nothing does not exist; then use points.
    if other > 0 and best / other >= 1.1:
        ratio = best / other
        return f"{ratio:,.0f} times" if ratio > WHOLE_RATIO else f"{ratio:.1f} times"
    # The difference of what is shown.
    return f"{round(100 * best, 1) - round(100 * other, 1):.1f} points more than"


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


def _saved(summaries: Sequence[Summary]) -> str:
    """What prefix caches and shared blocks were good for; nothing where they were good for nothing."""
    found = [
        f"{s['policy']} found {percent(s['hit_share_of_prompt_tokens'])}"
        for s in summaries
        if s["hit_tokens"]
    ]
    shared = [
        f"; sharing saved {s['policy']} {percent(s['sharing']['saved_share_of_blocks'])} of its blocks"
        for s in summaries
        if "sharing" in s and s["sharing"]["saved_share_of_blocks"]
    ]
    cached = f"; {join(found)} of the prompt tokens cached" if found else ""
    # Where blocks are shared requests have several sequences, and less work must not look like a better batch.
    alone = [s["policy"] for s in summaries if "sharing" not in s] if shared else []
    less = f"; {join(alone)} served one sequence of each request" if alone else ""
    return f"{cached}{''.join(shared)}{less}"


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
    return join([first["policy"], *(f"{_running(s)} in {s['policy']}" for s in others)])


def _most_used(summary: Summary) -> float:
    """Share of the pool that was granted, or of no use to who waited."""
    return float(summary["peak_used_share"]) + float(summary["shares"]["external"])


def _keeps_kv(summary: Summary) -> bool:
    """Whether anything was ever live; without a cache nothing is."""
    return float(summary["shares_whole_run"]["live"]) > 0


def _frees_windows(summary: Summary) -> bool:
    return any(window is not None for window in summary["group_windows"])


def _mean_running(summary: Summary) -> float:
    return float(summary["mean_running"])


def _running(summary: Summary) -> str:
    return f"{summary['mean_running']:.1f}"


def percent(share: float) -> str:
    return f"{100 * share:.{2 if 0 < share < SMALL_SHARE else 1}f} %"


def join(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
