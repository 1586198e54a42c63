"""The answer in one sentence."""

from collections.abc import Callable, Sequence
from typing import Any

Summary = dict[str, Any]

ROOMY = 0.1  # share of the pool that is free on average where memory is no limit


def comparison_verdict(summaries: Sequence[Summary]) -> str:
    """Which policy keeps most of the pool live, by how much, and what that means for batching.

    Policies that keep no KV (no-cache) or finished no request do not compete.
    """
    ran = [s for s in summaries if s["num_finished"] > 0 and _live(s) > 0]
    if not any(s["num_finished"] for s in summaries):
        return f"No policy finished any of the {summaries[0]['num_requests']:,} requests."
    if not ran:
        return "None of these policies keeps a KV cache, so there is nothing to compare."
    # Where the best leaves a good part of the pool free, memory does not limit it, and live shares tell how much there
    # was to do. Then what counts is how much of the memory that a policy takes is live.
    roomy = max(ran, key=_live)["shares"]["free"] >= ROOMY
    score = _live_of_taken if roomy else _live
    what = "of the memory it takes" if roomy else "of the KV pool"
    ranked = sorted(ran, key=score, reverse=True)
    best, others = ranked[0], ranked[1:]
    equals = [s for s in others if _percent(score(s)) == _percent(score(best))]
    behind = others[len(equals) :]
    room = _room(best) if roomy else ""
    if not behind:
        return _alone(best) if not equals else _all_equal([best, *equals])
    names = _join([s["policy"] for s in (best, *equals)])
    verb = "keep" if equals else "keeps"
    next_best, worst = behind[0], behind[-1]
    lead = f"{_lead(score(best), score(next_best))} {_named(next_best, score)}"
    running = f"{_running(next_best)} in {next_best['policy']}"
    if worst is not next_best:
        lead += f" and {_lead(score(best), score(worst))} {_named(worst, score)}"
        running += f" and {_running(worst)} in {worst['policy']}"
    each = " each" if equals else ""
    return (
        f"{names} {verb} {_percent(score(best))}{each} {what} live, {lead}; "
        f"{_running(best)} requests run together on average, against {running}{room}{_left_out(best)}."
    )


def run_verdict(summary: Summary) -> str:
    """The same for a single run."""
    if summary["num_finished"] == 0:
        return (
            f"{summary['policy']} finished none of {summary['num_requests']:,} requests: "
            f"{summary['num_rejected']:,} were rejected."
        )
    if _live(summary) == 0:
        return (
            f"{summary['policy']} keeps no KV cache; {_running(summary)} requests run together "
            f"on average, and {summary['recomputed_tokens']:,} tokens were computed again."
        )
    return _alone(summary)


def _alone(summary: Summary) -> str:
    shares = summary["shares"]
    lost, share = max(((n, s) for n, s in shares.items() if n != "live"), key=lambda item: item[1])
    return (
        f"{summary['policy']} keeps {_percent(_live(summary))} of the KV pool live and runs "
        f"{_running(summary)} requests together on average; most of the rest is "
        f"{lost} ({_percent(share)}){_left_out(summary)}."
    )


def _all_equal(summaries: Sequence[Summary]) -> str:
    return (
        f"{_join([s['policy'] for s in summaries])} keep {_percent(_live(summaries[0]))} of the KV "
        f"pool live each; {_join([_running(s) for s in summaries])} requests run together "
        f"on average{_left_out(summaries[0])}."
    )


def _left_out(summary: Summary) -> str:
    # A policy that turned requests away must not look good in silence.
    if not summary["num_rejected"]:
        return ""
    rejected, total = summary["num_rejected"], summary["num_requests"]
    return f" ({summary['policy']} rejected {rejected:,} of {total:,} requests)"


def _lead(best: float, other: float) -> str:
    # A factor close to one says nothing, and one over nothing does not exist; then use points.
    if other > 0 and best / other >= 1.1:
        return f"{best / other:.1f} times"
    return f"{100 * (best - other):.1f} points more than"


def _named(summary: Summary, score: Callable[[Summary], float]) -> str:
    return f"{summary['policy']} ({_percent(score(summary))})"


def _room(summary: Summary) -> str:
    free = summary["shares"]["free"]
    if free < ROOMY:
        return ""
    return f"; {summary['policy']} leaves {_percent(free)} of the pool free on average"


def _live_of_taken(summary: Summary) -> float:
    return _live(summary) / (1 - float(summary["shares"]["free"]))


def _live(summary: Summary) -> float:
    return float(summary["shares"]["live"])


def _running(summary: Summary) -> str:
    return f"{summary['mean_running']:.1f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _join(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
