"""Pure functions from frames and summaries to the numbers that figures and pages show."""

from collections.abc import Mapping
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

    @property
    def serious(self) -> bool:
        return self.text != "none"


def notices(comparison: Mapping[str, Any]) -> list[Notice]:
    """Everything rejected, clipped, skipped, overloaded or uncalibrated in a comparison.json."""
    summaries, trace = comparison["policies"], comparison["trace"]
    clipped = _listed({s["policy"]: _of(s, "num_clipped") for s in summaries if s["num_clipped"]})
    if trace["num_clipped"]:
        by_generator = f"{trace['num_clipped']:,} requests shortened when they were generated"
        clipped = by_generator if clipped == "none" else f"{clipped}; {by_generator}"
    if trace["saturated"]:
        overloaded = "not applicable: saturated, all requests arrive at once"
    else:
        overloaded = _listed(
            {
                s["policy"]: f"{s['waiting_at_last_arrival']:,} waiting"
                for s in summaries
                if s["overloaded"]
            }
        )
    unfitted = [s["policy"] for s in summaries if not s["calibrated"]]
    if not unfitted:
        uncalibrated = "none"
    else:
        who = "all policies" if len(unfitted) == len(summaries) else ", ".join(unfitted)
        uncalibrated = f"latencies and tok/s of {who}: the cost model is not fitted to measurements"
    return [
        Notice(
            "Rejected", _listed({s["policy"]: _rejected(s) for s in summaries if s["num_rejected"]})
        ),
        Notice("Clipped", clipped),
        Notice("Skipped", _skipped(trace["skipped"])),
        Notice("Overloaded", overloaded),
        Notice("Uncalibrated", uncalibrated),
    ]


def _skipped(rows_by_reason: Mapping[str, int]) -> str:
    return (
        "; ".join(f"{num:,} rows of the trace: {why}" for why, num in rows_by_reason.items())
        or "none"
    )


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


def _listed(by_policy: Mapping[str, str]) -> str:
    """One entry per policy; policies with the same entry share it."""
    groups: dict[str, list[str]] = {}
    for policy, text in by_policy.items():
        groups.setdefault(text, []).append(policy)
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in groups.items()) or "none"
