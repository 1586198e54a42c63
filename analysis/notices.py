"""What nobody may overlook in a result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvtwin.sim.requests import EXCEEDS_GRANT

from .definitions import DEPENDS_ON_STEP_TIMES, NS_PER_S
from .verdict_clauses import percent
from .waiting import waiting_text

# Share of the loaded window from which waiting for a limit of the engine, not for memory, is worth a look.
OFTEN = 0.25
# And from which mean running says more of idle time than of how many run together.
LONG_IDLE = 0.05


@dataclass(frozen=True)
class Notice:
    """Something that nobody may overlook in a result; `text` is "none" where it is absent."""

    kind: str
    text: str
    serious: bool


def notices(result: Mapping[str, Any]) -> list[Notice]:
    """Everything rejected, clipped, skipped, overloaded, limited or uncalibrated.

    `result` holds `config`, `trace` and `policies` (the summaries), as comparison.json does.
    """
    summaries, trace = result["policies"], result["trace"]
    requests = f"of {trace['num_requests']:,} requests"
    rejected = _by_policy(summaries, "num_rejected", lambda s: f"{s['num_rejected']:,} {requests}")
    rejected += [_example(s) for s in summaries if s["rejections"]][:1]
    rejected += _by_policy(
        summaries,
        "num_calls_after_rejected",
        lambda s: (
            f"{s['num_calls_after_rejected']:,} calls that waited for a rejected one came all the same"
        ),
    )
    skipped = [f"{num:,} rows of the trace: {why}" for why, num in trace["skipped"].items()]
    unfitted = [s | {"unfitted": not s["calibrated"]} for s in summaries]
    uncalibrated = _by_policy(unfitted, "unfitted", lambda _: "latencies and tok/s")
    if uncalibrated and not trace["saturated"]:
        uncalibrated.append(DEPENDS_ON_STEP_TIMES)
    return [
        _notice("Rejected", rejected),
        _notice("Clipped", _clipped(summaries, trace)),
        _notice("Skipped", skipped),
        _overloaded(
            summaries,
            saturated=trace["saturated"],
            closed_loop=trace.get("closed_loop") is not None,
        ),
        _idle(summaries),
        _waited(summaries),
        _limited(
            summaries,
            "max_num_seqs",
            lambda s: (
                f", {_running(s):,.1f} of {result['config']['max_num_seqs']:,} run on average"
            ),
        ),
        _limited(summaries, "max_num_batched_tokens", lambda _: ""),
        _notice("Uncalibrated", uncalibrated),
    ]


def _idle(summaries: Sequence[dict[str, Any]]) -> Notice:
    """Where mean running is of a time in which for long nobody was there."""

    def text(summary: dict[str, Any]) -> str:
        share = percent(summary["idle_ns"] / summary["loaded_end_ns"])
        return (
            f"no request for {summary['idle_ns'] / NS_PER_S:,.1f} s ({share}) of the loaded window; in the rest "
            f"{summary['busy_mean_running']:.1f} run on average, not {summary['mean_running']:.1f}"
        )

    told = [s | {"idle": s["idle_ns"] > LONG_IDLE * s["loaded_end_ns"]} for s in summaries]
    return _notice("Idle", _by_policy(told, "idle", text))


def _waited(summaries: Sequence[dict[str, Any]]) -> Notice:
    """What the next in line waited for, whatever it was."""
    told = [s | {"waited": waiting_text(s)} for s in summaries]
    entries = _by_policy(told, "waited", lambda s: f"for {s['waited']}")
    text = "; ".join(entries) or "nobody waited for room"
    return Notice("Next in line waited, of the loaded window", text, serious=False)


def _limited(
    summaries: Sequence[dict[str, Any]], limit: str, more: Callable[[dict[str, Any]], str]
) -> Notice:
    """Whose next in line often waited for a limit of the engine."""
    told = [s | {"often": s["waiting_shares"][limit] >= OFTEN} for s in summaries]
    entries = _by_policy(
        told,
        "often",
        lambda s: f"{percent(s['waiting_shares'][limit])} of the loaded window{more(s)}",
    )
    return _notice(f"Limited by {limit}", entries)


def _running(summary: dict[str, Any]) -> float:
    """Running sequences on average, which is what max_num_seqs limits: of a request there may be several."""
    sharing = summary.get("sharing", {})
    running: float = sharing.get("mean_running_sequences", summary["mean_running"])
    return running


def _clipped(summaries: Sequence[dict[str, Any]], trace: Mapping[str, Any]) -> list[str]:
    generated = trace["num_clipped"]

    def text(summary: dict[str, Any]) -> str:
        num = f"{summary['num_clipped']:,} of {trace['num_requests']:,} requests"
        if not generated:
            return num
        part = "" if summary["num_clipped"] == generated else f"{generated:,} of them "
        return f"{num} ({part}shortened when generated)"

    if generated and all(s["num_clipped"] == generated for s in summaries):
        return [text(summaries[0])]  # the trace's matter, no policy's
    return _by_policy(summaries, "num_clipped", text)


def _overloaded(
    summaries: Sequence[dict[str, Any]], *, saturated: bool, closed_loop: bool
) -> Notice:
    if saturated:
        # Without an arrival rate there is nothing to keep up with.
        return Notice("Overloaded", "saturated: all requests arrive at once", serious=False)
    if all(s["num_finished"] and s["waiting_at_last_arrival"] is None for s in summaries):
        # Of a closed loop: later calls come when they are let, so only first calls tell how much there is to do.
        why = "all sessions begin at once" if closed_loop else "those served arrive at once"
        return Notice("Overloaded", f"not judged: {why}", serious=False)
    growing = _by_policy(
        summaries, "overloaded", lambda s: f"{s['waiting_at_last_arrival']:,} waiting"
    )
    if growing:
        fitted = all(s["calibrated"] for s in summaries)
        by = "" if fitted else " (by uncalibrated step times)"
        growing.insert(0, f"queue still growing at the last arrival{by}")
    return _notice("Overloaded", growing)


def _notice(kind: str, entries: Sequence[str]) -> Notice:
    return Notice(kind, "; ".join(entries) or "none", serious=bool(entries))


def _by_policy(
    summaries: Sequence[dict[str, Any]], key: str, text: Callable[[dict[str, Any]], str]
) -> list[str]:
    """An entry for each policy where `key` holds; policies with the same text share one."""
    groups: dict[str, list[str]] = {}
    for summary in summaries:
        if summary[key]:
            groups.setdefault(text(summary), []).append(summary["policy"])
    return [
        f"{'all policies' if 1 < len(names) == len(summaries) else ', '.join(names)}: {words}"
        for words, names in groups.items()
    ]


def first_rejection(summary: Mapping[str, Any]) -> str:
    """Why the first request that was rejected was: what it needed, and the limit, in a unit that a user knows."""
    first = summary["rejections"][0]
    value, limit, unit = first["value"], first["limit"], ""
    num_groups = len(summary["group_windows"])
    if first["reason"].startswith(EXCEEDS_GRANT):
        unit = " slots"
    if unit and num_groups > 1:
        # Slots are then parts of a token, by which nobody can tell how long a request may be.
        value, limit = value // summary["block_slots"], limit // summary["block_slots"]
        unit = f" blocks, each of one of {num_groups} groups of layers"
    return f"{first['reason']}: {value:,}, limit {limit:,}{unit}"


def _example(summary: dict[str, Any]) -> str:
    row = summary["rejections"][0]["row"]
    return f"e.g. row {row:,} in {summary['policy']}, {first_rejection(summary)}"
