"""Tiny run directories and comparisons in the documented format, made without the simulator."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

POOL_SLOTS = 64
POOL_BYTES = 65536
GIB = 2**30
PARTS = ("live", "reserved", "internal", "rounding", "cached", "external", "free")
SHARES = {
    "orca-max": (0.19, 0.135, 0.575, 0.0, 0.0, 0.1, 0.0),
    "contiguous": (0.6, 0.1, 0.05, 0.0, 0.0, 0.05, 0.2),
    "paged": (0.95, 0.01, 0.02, 0.0, 0.0, 0.01, 0.01),
}
MEAN_RUNNING = {"orca-max": 7.0, "contiguous": 20.25, "paged": 34.21}


def summary(policy: str, /, **changed: Any) -> dict[str, Any]:
    """A summary with every documented key."""
    latency = {"mean": 120.5, "p50": 100.25, "p99": 950.0}
    shares = dict(zip(PARTS, SHARES[policy], strict=True))
    return {
        "policy": policy,
        "num_requests": 3,
        "num_finished": 3,
        "num_rejected": 0,
        "num_clipped": 0,
        "preemptions": 0,
        "num_preempted_requests": 0,
        "num_calls_after_rejected": 0,
        "pool_slots": POOL_SLOTS,
        "pool_bytes": POOL_BYTES,
        "group_windows": [None],
        "block_slots": 16,
        "kv_bytes_per_token": 1024,
        "start_ns": 0,
        "loaded_end_ns": 2_000_000_000,
        "end_ns": 4_000_000_000,
        "num_steps": 40,
        "num_prompt_tokens": 14,
        "hit_tokens": 0,
        "hit_share_of_prompt_tokens": 0.0,
        "num_output_tokens": 14,
        "requests_per_s": 0.75,
        "num_prefill_tokens": 24,
        "num_decode_tokens": 30,
        "recomputed_tokens": 0,
        "moved_slots": 0,
        "most_running": 41,
        "peak_used_share": 0.96,
        "mean_running": MEAN_RUNNING[policy],
        "idle_ns": 0,
        "busy_mean_running": MEAN_RUNNING[policy],
        "waiting_shares": {
            "memory": 0.9,
            "max_num_seqs": 0.05,
            "max_num_batched_tokens": 0.0,
            "batch": 0.0,
        },
        "largest_free_run_share": 0.5,
        "shares": shares,
        "shares_whole_run": shares,
        "output_tokens_per_s": 1234.5,
        "ttft_ms": latency,
        "tpot_ms": latency,
        "itl_ms": latency,
        "e2el_ms": latency,
        "queue_ms": {"mean": None, "p50": None, "p99": None},
        "overloaded": False,
        "waiting_at_half": 0,
        "waiting_at_last_arrival": 0,
        "calibrated": False,
        "saturated": True,
        "rejections": [],
    } | changed


def distinct_summary(policy: str, /, **changed: Any) -> dict[str, Any]:
    """A summary in which no two numbers look alike, so that any of them in a wrong place shows.

    A latency is 100 x its kind (1 TTFT to 5 queue) + its statistic (1 mean, 2 p50, 3 p99).
    """
    shares = dict(zip(PARTS, (0.31, 0.19, 0.17, 0.13, 0.11, 0.06, 0.03), strict=True))
    whole_run = dict(zip(PARTS, (0.29, 0.2, 0.16, 0.14, 0.1, 0.07, 0.04), strict=True))
    kinds = ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms", "queue_ms")
    latencies = {
        kind: {"mean": 100.0 * i + 1, "p50": 100.0 * i + 2, "p99": 100.0 * i + 3}
        for i, kind in enumerate(kinds, start=1)
    }
    numbers = {
        "num_requests": 97,
        "num_finished": 83,
        "num_rejected": 14,
        "num_clipped": 5,
        "preemptions": 23,
        "num_preempted_requests": 19,
        "num_calls_after_rejected": 0,
        "pool_slots": 1000,
        "pool_bytes": 2_048_000,
        "kv_bytes_per_token": 2048,
        "start_ns": 1_000_000_000,
        "loaded_end_ns": 3_500_000_000,
        "end_ns": 6_250_000_000,
        "num_steps": 1717,
        "num_prompt_tokens": 9901,
        "hit_tokens": 2203,
        "hit_share_of_prompt_tokens": 2203 / 9901,
        "num_output_tokens": 10111,
        "requests_per_s": 11.31,
        "num_prefill_tokens": 5501,
        "num_decode_tokens": 6607,
        "recomputed_tokens": 7703,
        "moved_slots": 8809,
        "most_running": 39,
        "peak_used_share": 0.893,
        "mean_running": 12.73,
        "largest_free_run_share": 0.427,
        "output_tokens_per_s": 127.49,
        "waiting_at_half": 29,
        "waiting_at_last_arrival": 37,
    }
    state = {"saturated": False, "overloaded": True}
    shown = {"shares": shares, "shares_whole_run": whole_run, **latencies, **state}
    return summary("paged", **(numbers | shown | {"policy": policy} | changed))


def timeline(policy: str) -> pd.DataFrame:
    """Four rows of a second each, every one with the shares of the summary."""
    start_ns = np.arange(4, dtype=np.int64) * 1_000_000_000
    columns = {"start_ns": start_ns, "end_ns": start_ns + 1_000_000_000}
    for name, share in zip(PARTS, SHARES[policy], strict=True):
        columns[f"{name}_slots"] = np.full(4, share * POOL_SLOTS)
    return pd.DataFrame(columns).assign(
        num_running=3.0,
        num_waiting=1,
        num_preemptions=0,
        num_prefill_tokens=6,
        num_decode_tokens=8,
        num_steps=10,
        largest_free_run_slots=2,
        free_run_total_slots=4,
    )


def requests() -> pd.DataFrame:
    """Three requests; row r plans to commit 15, 7 and 3 tokens, row 2 is done after 1.5 s."""
    return pd.DataFrame(
        {
            "row": [0, 1, 2],
            "arrival_ns": [0, 0, 0],
            "num_prompt_tokens": [8, 4, 2],
            "num_output_tokens": [8, 4, 2],
            "trace_output_tokens": [8, 4, 2],
            "status": "finished",
            "admitted_ns": [0, 0, 0],
            "first_token_ns": [100_000_000] * 3,
            "finished_ns": [4_000_000_000, 4_000_000_000, 1_500_000_000],
            "num_preemptions": 0,
            "need_slots": pd.array([None] * 3, dtype="Int64"),
            "limit_slots": pd.array([None] * 3, dtype="Int64"),
        }
    )


def snapshots() -> pd.DataFrame:
    """At the end of each row: 0 holds [0, 16), 1 holds [32, 40) and [48, 52), 2 holds [56, 64)."""
    runs = [(0, 16, 0), (32, 8, 1), (48, 4, 1), (56, 8, 2)]
    return pd.DataFrame(
        [
            {"time_ns": second * 1_000_000_000, "first_slot": first, "num_slots": num, "row": row}
            for second in (1, 2, 3, 4)
            for first, num, row in runs
        ]
    )


def write_run(directory: Path, policy: str, /, **changed: Any) -> dict[str, Any]:
    """Write a run directory with snapshots; return its summary."""
    directory.mkdir(parents=True)
    made = summary(policy, **changed)
    run = {"schema_version": 1, "config": {"policy": policy}, "trace": {}, "summary": made}
    (directory / "run.json").write_text(json.dumps(run))
    (directory / "meta.json").write_text("{}")
    requests().to_parquet(directory / "requests.parquet")
    timeline(policy).to_parquet(directory / "timeline.parquet")
    snapshots().to_parquet(directory / "snapshots.parquet")
    return made


def comparison(*summaries: dict[str, Any], saturated: bool = True, **trace: Any) -> dict[str, Any]:
    """The object of comparison.json around `summaries`."""
    return {
        "schema_version": 1,
        "verdict": "paged keeps most of it.",
        "held_by": "Nobody waited for room in any of them.",
        "config": {
            "model": "OPT-13B",
            "gpu": "A100-40GB",
            "tensor_parallel_size": 1,
            "num_gpu_blocks_override": None,
            "kv_cache_memory_bytes": None,
            "gpu_memory_utilization": 0.92,
            "block_size": 16,
            "max_model_len": 32,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 8192,
            "kv_cache_dtype": "auto",
            "seed": 0,
            "admission": "full",
            "watermark": 0.01,
            "growth_tokens": 16,
            "fit": "first",
            "compaction": False,
            "max_tokens": None,
            "cost": "roofline",
        },
        "pool": {
            "num_blocks": 4,
            "block_size": 16,
            "num_slots": POOL_SLOTS,
            "kv_bytes_per_token": 1024,
            "pool_bytes": POOL_BYTES,
            "max_model_len": 32,
            "groups": {"windows": [None], "token_slots": [1]},
            "terms": [
                ["gpu_memory", 3 * GIB, "a data sheet"],
                ["weights", POOL_BYTES - 3 * GIB, "a count"],
            ],
            "notes": [],
        },
        "notes": ["a note about windows"],
        "trace": {
            "name": "sharegpt-like",
            "format": "synthetic",
            "num_requests": 3,
            "span_s": 0.0 if saturated else 4.0,
            "saturated": saturated,
            "closed_loop": None,
            "num_clipped": 0,
            "skipped": {},
        }
        | trace,
        "latency_calibrated": False,
        "latency_note": "UNCALIBRATED: not fitted",
        "policies": list(summaries),
    }


def write_runs(directory: Path, **changed: Any) -> list[dict[str, Any]]:
    """A run directory for each fabricated policy in `directory`; return the summaries."""
    return [write_run(directory / policy, policy, **changed) for policy in SHARES]
