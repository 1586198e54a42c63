"""The numbers of one run."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .closed_loop import num_calls_after_rejected
from .ledger import FIELDS, WAIT_REASONS
from .recorder import Recorder
from .requests import RequestTable

PARTS = ("live", "reserved", "internal", "rounding", "cached", "external", "free")
MAX_REJECTIONS_SHOWN = 20
# A queue grows if, on balance, more than one in twenty of the arrivals of the second half are added to it.
_OVERLOAD_SHARE = 0.05
_OVERLOAD_WAITING = 10

Ints = npt.NDArray[np.int64]


def parts_of(sums: tuple[int, ...]) -> dict[str, int]:
    """Slots x ns of the seven parts, from the recorder's sums."""
    total = dict(zip(FIELDS, sums, strict=True))
    return {
        "live": total["live"],
        "reserved": total["useful"] - total["live"],
        "internal": total["asked"] - total["useful"],
        "rounding": total["granted"] - total["asked"],
        "cached": total["cached"],
        "external": total["external"],
        "free": total["free"] - total["external"],
    }


def _shares(sums: tuple[int, ...], pool_slots: int) -> dict[str, float]:
    parts = parts_of(sums)
    pool = pool_slots * sums[FIELDS.index("duration_ns")]
    assert sum(parts.values()) == pool, (
        f"INV-1: parts {parts} add up to {sum(parts.values())}, the pool is {pool}"
    )
    return {name: value / pool if pool else float(name == "free") for name, value in parts.items()}


def summarize(
    requests: RequestTable, recorder: Recorder, pool_slots: int, end_ns: int
) -> dict[str, Any]:
    """What `run.json` calls the summary, less what only the caller knows (policy, pool bytes, calibration)."""
    whole = dict(zip(FIELDS, recorder.whole, strict=True))
    assert recorder.loaded is not None, "the recorder has not been told that the run is over"
    loaded = dict(zip(FIELDS, recorder.loaded, strict=True))
    busy_ns = loaded["duration_ns"] - loaded["idle"]
    finished = np.array(requests.accepted, dtype=np.int64)
    longest_output = np.array(requests.longest_output_tokens, dtype=np.int64)[finished]
    arrival = np.array(requests.arrival_ns, dtype=np.int64)
    admitted, first, last = (
        np.array(column)[finished]
        for column in (requests.admitted_ns, requests.first_token_ns, requests.finished_ns)
    )
    several = longest_output > 1
    gaps = recorder.gaps
    generated = np.array(requests.num_generated_tokens, dtype=np.int64)[finished]
    num_output_tokens = int(generated.sum())
    num_prompt_tokens = int(np.array(requests.num_prompt_tokens, dtype=np.int64)[finished].sum())
    hit_tokens = sum(requests.num_hit_tokens)
    preemptions = np.array(requests.num_preemptions)
    return {
        "num_requests": len(requests.arrival_ns),
        "num_finished": len(finished),
        "num_rejected": len(requests.rejections),
        "preemptions": whole["num_preemptions"],
        "num_preempted_requests": int((preemptions > 0).sum()),
        "max_preemptions_of_one_request": int(preemptions.max(initial=0)),
        "pool_slots": pool_slots,
        "start_ns": 0,
        "loaded_end_ns": loaded["duration_ns"],
        "end_ns": end_ns,
        "num_steps": whole["num_steps"],
        "num_prompt_tokens": num_prompt_tokens,
        "hit_tokens": hit_tokens,
        "hit_share_of_prompt_tokens": hit_tokens / num_prompt_tokens if num_prompt_tokens else 0.0,
        "num_output_tokens": num_output_tokens,
        "num_prefill_tokens": whole["num_prefill_tokens"],
        "num_decode_tokens": whole["num_decode_tokens"],
        "mean_running": loaded["running"] / loaded["duration_ns"] if loaded["duration_ns"] else 0.0,
        "idle_ns": loaded["idle"],
        "busy_mean_running": loaded["running"] / busy_ns if busy_ns else 0.0,
        "waiting_shares": {
            reason: loaded[f"waits_for_{reason}"] / loaded["duration_ns"]
            if loaded["duration_ns"]
            else 0.0
            for reason in WAIT_REASONS
        },
        "largest_free_run_share": _largest_free_run_share(recorder, loaded["duration_ns"]),
        "shares": _shares(recorder.loaded, pool_slots),
        "shares_whole_run": _shares(recorder.whole, pool_slots),
        "output_tokens_per_s": num_output_tokens / (end_ns / 1e9) if end_ns else 0.0,
        "requests_per_s": len(finished) / (end_ns / 1e9) if end_ns else 0.0,
        "ttft_ms": _spread(first - arrival[finished]),
        "tpot_ms": _spread((last - first)[several] / (longest_output[several] - 1)),
        "itl_ms": {
            "mean": gaps.mean_ms(),
            "p50": gaps.percentile_ms(50),
            "p99": gaps.percentile_ms(99),
        },
        "e2el_ms": _spread(last - arrival[finished]),
        "queue_ms": _spread(admitted - arrival[finished]),
        **_overload(requests, arrival[finished], admitted),
        "num_calls_after_rejected": num_calls_after_rejected(requests),
        "rejections": [
            {"row": r.row, "reason": r.reason, "value": r.value, "limit": r.limit}
            for r in requests.rejections[:MAX_REJECTIONS_SHOWN]
        ],
    }


def _spread(values_ns: npt.NDArray[Any]) -> dict[str, float | None]:
    if not len(values_ns):
        return {"mean": None, "p50": None, "p99": None}
    p50, p99 = np.percentile(values_ns, (50, 99)) / 1e6
    return {"mean": float(np.mean(values_ns)) / 1e6, "p50": float(p50), "p99": float(p99)}


def _largest_free_run_share(recorder: Recorder, end_ns: int) -> float | None:
    """Mean over the rows that began in the loaded window, weighted by duration; None if nothing was ever free."""
    rows = [row for row in recorder.rows if row.start_ns < end_ns and row.sample.free_slots]
    total_ns = sum(row.end_ns - row.start_ns for row in rows)
    if not total_ns:
        return None
    shares = (
        row.sample.largest_free_run_slots / row.sample.free_slots * (row.end_ns - row.start_ns)
        for row in rows
    )
    return sum(shares) / total_ns


def _overload(requests: RequestTable, arrival_ns: Ints, admitted_ns: Ints) -> dict[str, Any]:
    """Whether the queue still grew at the end of the recorded arrivals: see docs/design.md."""
    as_recorded = arrival_ns
    if requests.waits is not None:
        is_first = np.diff(requests.waits.offsets)[requests.accepted] == 0
        as_recorded, arrival_ns = arrival_ns[is_first], np.sort(arrival_ns)
    if not len(as_recorded) or as_recorded[-1] == as_recorded[0]:
        return {"overloaded": False, "waiting_at_half": None, "waiting_at_last_arrival": None}
    first_ns, last_ns = int(as_recorded[0]), int(as_recorded[-1])
    half_ns = first_ns + (last_ns - first_ns) // 2
    waiting = [
        int(np.searchsorted(arrival_ns, at_ns, "right") - (admitted_ns <= at_ns).sum())
        for at_ns in (half_ns, last_ns)
    ]
    num_by_half, num_by_last = np.searchsorted(arrival_ns, (half_ns, last_ns), "right").tolist()
    num_second_half = num_by_last - num_by_half
    grown = waiting[1] - waiting[0]
    return {
        "overloaded": grown > _OVERLOAD_SHARE * num_second_half and waiting[1] >= _OVERLOAD_WAITING,
        "waiting_at_half": waiting[0],
        "waiting_at_last_arrival": waiting[1],
    }
