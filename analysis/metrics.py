"""Pure functions from frames and summaries to the numbers that figures and pages show."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .parts import PART_NAMES

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
    a KV cache, so the steps so far are the tokens so far. KV held is what is live, the mean over
    the row.
    """
    return Generation(
        num_tokens=timeline["num_steps"].to_numpy().cumsum(),
        elapsed_s=(timeline["end_ns"].to_numpy() - timeline["start_ns"].iloc[0]) / NS_PER_S,
        kv_bytes=timeline["live_slots"].to_numpy(dtype=np.float64) * kv_bytes_per_token,
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

    def by_policy(key: str, text: Callable[[dict[str, Any]], str]) -> list[str]:
        return _listed({s["policy"]: text(s) for s in summaries if s[key]}, len(summaries))

    clipped = by_policy("num_clipped", lambda s: _of(s, "num_clipped"))
    if trace["num_clipped"]:
        clipped.append(f"{trace['num_clipped']:,} of them when they were generated")
    skipped = [f"{num:,} rows of the trace: {why}" for why, num in trace["skipped"].items()]
    unfitted = {s["policy"]: "latencies and tok/s" for s in summaries if not s["calibrated"]}
    overloaded = _notice("Overloaded", by_policy("overloaded", _waiting))
    # Without an arrival rate there is nothing to keep up with.
    saturated = Notice("Overloaded", "saturated: all requests arrive at once", serious=False)
    return [
        _notice("Rejected", by_policy("num_rejected", _rejected)),
        _notice("Clipped", clipped),
        _notice("Skipped", skipped),
        saturated if trace["saturated"] else overloaded,
        _notice("Uncalibrated", _listed(unfitted, len(summaries))),
    ]


def _waiting(summary: dict[str, Any]) -> str:
    return f"queue still growing at the end, {summary['waiting_at_last_arrival']:,} wait"


def _notice(kind: str, entries: Sequence[str]) -> Notice:
    return Notice(kind, "; ".join(entries) or "none", serious=bool(entries))


def _rejected(summary: dict[str, Any]) -> str:
    text = _of(summary, "num_rejected")
    if summary["rejections"]:
        first = summary["rejections"][0]
        text += (
            f", e.g. row {first['row']}: {first['reason']} {first['value']:,}, "
            f"limit {first['limit']:,}"
        )
    return text


def _of(summary: dict[str, Any], key: str) -> str:
    return f"{summary[key]:,} of {summary['num_requests']:,} requests"


def _listed(by_policy: Mapping[str, str], num_policies: int) -> list[str]:
    """One entry per policy; policies with the same entry share it."""
    groups: dict[str, list[str]] = {}
    for policy, text in by_policy.items():
        groups.setdefault(text, []).append(policy)
    return [
        f"{'all policies' if 1 < len(names) == num_policies else ', '.join(names)}: {text}"
        for text, names in groups.items()
    ]
