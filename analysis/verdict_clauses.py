"""Clauses that verdicts are made of."""

from collections.abc import Callable, Sequence
from typing import Any

Summary = dict[str, Any]

WHOLE_RATIO = 20  # above, decimals of a ratio say nothing
SMALL_SHARE = 0.01  # below, one decimal of a percentage is too few to check a ratio by


def percent(share: float) -> str:
    return f"{100 * share:.{2 if 0 < share < SMALL_SHARE else 1}f} %"


def join(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def rate(tokens_per_s: float) -> str:
    return (
        f"{tokens_per_s:,.0f} tokens/s" if tokens_per_s >= 100 else f"{tokens_per_s:.3g} tokens/s"
    )


def running(summary: Summary) -> str:
    return f"{summary['mean_running']:.1f}"


def spread(
    summaries: Sequence[Summary],
    score: Callable[[Summary], float],
    text: Callable[[float], str] = percent,
) -> str:
    """What the first, the best, and those that are as good have."""
    low, high = text(score(summaries[-1])), text(score(summaries[0]))
    each = " each" if summaries[1:] else ""
    return f"{high}{each}" if low == high else f"{low} to {high}"


def lead(best: float, other: float) -> str:
    # A factor close to one says nothing, and one over nothing does not exist; then use points.
    if other > 0 and best / other >= 1.1:
        ratio = best / other
        return f"{ratio:,.0f} times" if ratio > WHOLE_RATIO else f"{ratio:.1f} times"
    # The difference of what is shown.
    return f"{round(100 * best, 1) - round(100 * other, 1):.1f} points more than"


def left_out(named: Sequence[Summary], summaries: Sequence[Summary]) -> str:
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


def saved(summaries: Sequence[Summary]) -> str:
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
