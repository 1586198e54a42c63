"""Writes a run directory: see docs/design.md for its files and columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .decisions import Decisions
from .ledger import FIELDS
from .recorder import Row
from .requests import UNKNOWN, RequestTable
from .summary import PARTS, parts_of

SCHEMA_VERSION = 1


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def write_requests(path: Path, requests: RequestTable) -> None:
    num = len(requests.arrival_ns)
    finished = np.zeros(num, dtype=bool)
    finished[requests.accepted] = True
    need, limit = np.full(num, UNKNOWN), np.full(num, UNKNOWN)
    for rejection in requests.rejections:
        need[rejection.row], limit[rejection.row] = rejection.value, rejection.limit
    _write(
        path,
        {
            "row": np.arange(num),
            "arrival_ns": np.array(requests.arrival_ns, dtype=np.int64),
            "num_prompt_tokens": np.array(requests.num_prompt_tokens, dtype=np.int64),
            "num_output_tokens": np.array(requests.num_output_tokens, dtype=np.int64),
            "trace_output_tokens": np.array(requests.trace_output_tokens, dtype=np.int64),
            "status": pa.DictionaryArray.from_arrays(
                pa.array(np.where(finished, 0, 1).astype(np.int8)), ["finished", "rejected"]
            ),
            "admitted_ns": _optional(requests.admitted_ns),
            "first_token_ns": _optional(requests.first_token_ns),
            "finished_ns": _optional(requests.finished_ns),
            "num_preemptions": np.array(requests.num_preemptions),
            "need_slots": _optional(need),
            "limit_slots": _optional(limit),
        },
    )


def write_timeline(path: Path, rows: list[Row]) -> None:
    sums = {name: [row.sums[i] for row in rows] for i, name in enumerate(FIELDS)}
    duration = sums["duration_ns"]
    parts = [parts_of(row.sums) for row in rows]
    _write(
        path,
        {
            "start_ns": [row.start_ns for row in rows],
            "end_ns": [row.end_ns for row in rows],
            **{
                f"{name}_slots": [part[name] / ns for part, ns in zip(parts, duration, strict=True)]
                for name in PARTS
            },
            "num_running": [running / ns for running, ns in zip(sums["running"], duration, strict=True)],
            "num_waiting": [row.sample.num_waiting for row in rows],
            **{
                name: sums[name]
                for name in ("num_preemptions", "num_prefill_tokens", "num_decode_tokens", "num_steps")
            },
            "largest_free_run_slots": [row.sample.largest_free_run_slots for row in rows],
            "free_run_total_slots": [row.sample.free_slots for row in rows],
        },
    )


def write_snapshots(path: Path, rows: list[Row]) -> None:
    pieces = [(row.end_ns, *piece) for row in rows for piece in row.sample.pieces]
    columns = np.array(pieces, dtype=np.int64).reshape(-1, 4)
    names = ("time_ns", "first_slot", "num_slots", "row")
    _write(path, {name: columns[:, i] for i, name in enumerate(names)})


def write_decisions(path: Path, decisions: Decisions) -> None:
    _write(
        path,
        {
            "step": np.array(decisions.steps),
            "action": pa.array(decisions.actions).dictionary_encode(),
            "row": np.array(decisions.rows),
            "first": np.array(decisions.firsts),
            "num": np.array(decisions.nums),
        },
    )


def _optional(column: Any) -> pa.Array:
    values = np.array(column)
    return pa.array(values, mask=values == UNKNOWN)


def _write(path: Path, columns: dict[str, Any]) -> None:
    pq.write_table(pa.table(columns), path, compression="zstd")
