"""Pure functions from frames and summaries to the numbers that figures and pages show."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .parts import GRANTED_PARTS, PART_NAMES

NS_PER_S = 1e9


@dataclass(frozen=True)
class PartsOverTime:
    """`edges_s[n + 1]`: bounds of n timeline rows, s since the first. `shares[7, n]`: 0 to 1."""

    edges_s: NDArray[np.float64]
    shares: NDArray[np.float64]


def parts_over_time(timeline: pd.DataFrame, pool_slots: int) -> PartsOverTime:
    """Share of the pool in each part, in the order of `PARTS`, for each row of the timeline."""
    start_ns = timeline["start_ns"].to_numpy()
    end_ns = timeline["end_ns"].to_numpy()
    slots = np.stack([timeline[f"{name}_slots"].to_numpy(dtype=np.float64) for name in PART_NAMES])
    return PartsOverTime(
        edges_s=(np.append(start_ns, end_ns[-1:]) - start_ns[0]) / NS_PER_S,
        shares=slots / pool_slots,
    )


@dataclass(frozen=True)
class Generation:
    """One request alone, after each timeline row: tokens generated, s passed, KV bytes held."""

    num_tokens: NDArray[np.int64]
    elapsed_s: NDArray[np.float64]
    kv_bytes: NDArray[np.float64]


def generation(timeline: pd.DataFrame, kv_bytes_per_token: int) -> Generation:
    """Progress of a run of a single request.

    Alone, a request whose prompt fits into one step gets one token in every step, with and without
    a KV cache, so the steps so far are the tokens so far. KV held is what is granted, the mean
    over the row.
    """
    granted_slots = timeline[[f"{name}_slots" for name in GRANTED_PARTS]].sum(axis="columns")
    return Generation(
        num_tokens=timeline["num_steps"].to_numpy().cumsum(),
        elapsed_s=(timeline["end_ns"].to_numpy() - timeline["start_ns"].iloc[0]) / NS_PER_S,
        kv_bytes=granted_slots.to_numpy(dtype=np.float64) * kv_bytes_per_token,
    )


@dataclass(frozen=True)
class Notice:
    """Something that nobody may overlook in a result; `text` is "none" where it is absent."""

    kind: str
    text: str
    serious: bool


def notices(comparison: Mapping[str, Any]) -> list[Notice]:
    """Everything rejected, clipped, skipped, overloaded or uncalibrated in a comparison.json."""
    summaries, trace = comparison["policies"], comparison["trace"]
    requests = f"of {trace['num_requests']:,} requests"
    rejected = _by_policy(summaries, "num_rejected", lambda s: f"{s['num_rejected']:,} {requests}")
    rejected += [_example(s) for s in summaries if s["rejections"]][:1]
    clipped = _by_policy(summaries, "num_clipped", lambda s: f"{s['num_clipped']:,} {requests}")
    if trace["num_clipped"]:
        clipped.append(f"{trace['num_clipped']:,} of them when they were generated")
    skipped = [f"{num:,} rows of the trace: {why}" for why, num in trace["skipped"].items()]
    growing = _by_policy(
        summaries, "overloaded", lambda s: f"{s['waiting_at_last_arrival']:,} waiting"
    )
    if growing:
        growing.insert(0, "queue still growing at the end")
    # Without an arrival rate there is nothing to keep up with.
    saturated = Notice("Overloaded", "saturated: all requests arrive at once", serious=False)
    unfitted = [s | {"unfitted": not s["calibrated"]} for s in summaries]
    return [
        _notice("Rejected", rejected),
        _notice("Clipped", clipped),
        _notice("Skipped", skipped),
        saturated if trace["saturated"] else _notice("Overloaded", growing),
        _notice("Uncalibrated", _by_policy(unfitted, "unfitted", lambda _: "latencies and tok/s")),
    ]


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


def _example(summary: dict[str, Any]) -> str:
    first = summary["rejections"][0]
    return (
        f"e.g. row {first['row']} in {summary['policy']}, {first['reason']}: "
        f"{first['value']:,}, limit {first['limit']:,}"
    )
