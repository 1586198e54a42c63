"""What held the number of requests that run together, counted from what the next in line waited for."""

from collections.abc import Sequence

from .verdict_clauses import Summary, join, percent

SELDOM = 0.01  # share of the loaded window below which waiting held nothing
# By what the ledger calls them.
CAUSES = {
    "memory": "memory",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "batch": "the batch to end",
}


def held_by(summaries: Sequence[Summary]) -> str:
    """A sentence: what the next in line waited for, and for how much of the loaded window; "" where nobody finished."""
    ran = [s for s in summaries if s["num_finished"]]
    if len(ran) == 1 == len(summaries):
        causes = _causes(ran[0])
        if not causes:
            return "Nobody waited for room: the load alone says how many run together."
        waited = join([f"{percent(share)} for {cause}" for cause, share in causes])
        return f"Of the loaded window, the next in line waited {waited}."
    groups: dict[str, list[Summary]] = {}
    for summary in ran:
        causes = _causes(summary)
        groups.setdefault(causes[0][0] if causes else "", []).append(summary)
    served = groups.pop("", [])
    parts = [f"for {cause} in {_named(group)}" for cause, group in groups.items()]
    said = f"The next in line waited mostly {join(parts)}" if parts else ""
    if served:
        names = (
            "any of them" if len(served) == len(ran) > 1 else join([s["policy"] for s in served])
        )
        said += f"{'; nobody' if said else 'Nobody'} waited for room in {names}"
    return f"{said}." if said else ""


def waiting_text(summary: Summary) -> str:
    """Every cause with its share of the loaded window, the largest first."""
    return ", ".join(f"{cause} {percent(share)}" for cause, share in _causes(summary))


def _causes(summary: Summary) -> list[tuple[str, float]]:
    shares = [(CAUSES[name], share) for name, share in summary["waiting_shares"].items()]
    return sorted((c for c in shares if c[1] >= SELDOM), key=lambda cause: -cause[1])


def _named(group: Sequence[Summary]) -> str:
    shares = [_causes(s)[0][1] for s in group]
    low, high = percent(min(shares)), percent(max(shares))
    share = low if low == high else f"{low} to {high}"
    return f"{join([s['policy'] for s in group])} ({share} of the loaded window)"
