"""Writes a run directory: see docs/design.md for its files and columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from .assembly import Assembly
from .decisions import Decisions
from .ledger import FIELDS
from .recorder import Row
from .requests import UNKNOWN, RequestTable
from .summary import PARTS, parts_of

SCHEMA_VERSION = 1


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def write_run(out_dir: Path, assembly: Assembly, summary: dict[str, Any]) -> None:
    """All of a finished run but `meta.json`. `out_dir` is made if need be."""
    out_dir.mkdir(parents=True, exist_ok=True)
    recorder, pool, cost, trace = assembly.recorder, assembly.pool, assembly.cost, assembly.trace
    write_requests(out_dir / "requests.parquet", assembly.requests)
    write_timeline(out_dir / "timeline.parquet", recorder.rows)
    if recorder.snapshots:
        write_snapshots(out_dir / "snapshots.parquet", recorder.rows)
    if assembly.log is not None:
        write_decisions(out_dir / "decisions.parquet", assembly.log)
    run = {
        "schema_version": SCHEMA_VERSION,
        "config": {
            **assembly.config.to_dict(),
            "resolved_max_model_len": pool.max_model_len,
            "pool_slots": pool.num_slots,
            "pool_bytes": pool.pool_bytes,
            "pool_terms": [list(term) for term in pool.terms],
            "cost_model": cost.to_dict(),
            "notes": [*pool.notes, *cost.notes],
        },
        "trace": {
            "name": trace.name,
            "format": trace.format,
            "num_requests": trace.num_requests,
            "notes": list(trace.notes),
        },
        "summary": summary,
    }
    write_json(out_dir / "run.json", run)


def write_requests(path: Path, requests: RequestTable) -> None:
    num = len(requests.arrival_ns)
    rejected = np.ones(num, dtype=np.int8)
    rejected[requests.accepted] = 0
    need, limit = np.full(num, UNKNOWN), np.full(num, UNKNOWN)
    for rejection in requests.rejections:
        need[rejection.row], limit[rejection.row] = rejection.value, rejection.limit
    _write(
        path,
        {
            "row": _integers(np.arange(num)),
            "arrival_ns": _integers(requests.arrival_ns),
            "num_prompt_tokens": _integers(requests.num_prompt_tokens),
            "num_output_tokens": _integers(requests.num_output_tokens),
            "trace_output_tokens": _integers(requests.trace_output_tokens),
            "trace_arrival_ns": _integers(requests.trace_arrival_ns),
            "status": _labels(rejected, ("finished", "rejected")),
            "admitted_ns": _optional(requests.admitted_ns),
            "first_token_ns": _optional(requests.first_token_ns),
            "finished_ns": _optional(requests.finished_ns),
            "num_preemptions": _integers(requests.num_preemptions),
            "num_hit_tokens": _integers(requests.num_hit_tokens),
            "num_sequences": _integers(list(map(len, requests.branch_outputs)) or np.ones(num)),
            "num_generated_tokens": _integers(requests.num_generated_tokens),
            "need_slots": _optional(need),
            "limit_slots": _optional(limit),
        },
    )


def write_timeline(path: Path, rows: list[Row]) -> None:
    sums = {name: [row.sums[i] for row in rows] for i, name in enumerate(FIELDS)}
    parts = [parts_of(row.sums) for row in rows]
    means = {f"{name}_slots": [part[name] for part in parts] for name in PARTS}
    means["num_running"] = list(sums["running"])
    counts = ("num_preemptions", "num_prefill_tokens", "num_decode_tokens", "num_steps")
    _write(
        path,
        {
            "start_ns": _integers([row.start_ns for row in rows]),
            "end_ns": _integers([row.end_ns for row in rows]),
            **{
                name: _floats(
                    [value / ns for value, ns in zip(values, sums["duration_ns"], strict=True)]
                )
                for name, values in means.items()
            },
            "num_waiting": _integers([row.sample.num_waiting for row in rows]),
            **{name: _integers(sums[name]) for name in counts},
            "largest_free_run_slots": _integers(
                [row.sample.largest_free_run_slots for row in rows]
            ),
            "free_run_total_slots": _integers([row.sample.free_slots for row in rows]),
        },
    )


def write_snapshots(path: Path, rows: list[Row]) -> None:
    pieces = [(row.end_ns, *piece) for row in rows for piece in row.sample.pieces]
    columns = np.array(pieces, dtype=np.int64).reshape(-1, 4)
    names = ("time_ns", "first_slot", "num_slots", "row")
    _write(path, {name: _integers(columns[:, i]) for i, name in enumerate(names)})


def write_decisions(path: Path, decisions: Decisions) -> None:
    actions = sorted(set(decisions.actions))
    codes = {action: code for code, action in enumerate(actions)}
    _write(
        path,
        {
            "step": _integers(decisions.steps),
            "action": _labels(
                np.array([codes[a] for a in decisions.actions], dtype=np.int8), actions
            ),
            "row": _integers(decisions.rows),
            "branch": _integers(decisions.branches),
            "first": _integers(decisions.firsts),
            "num": _integers(decisions.nums),
            "source": _integers(decisions.sources),
        },
    )


def write_steps(path: Path, columns: Mapping[str, npt.NDArray[np.int64] | None]) -> None:
    """`steps.parquet` of an execution: integers by step; None: a column of nulls."""
    num = next(len(values) for values in columns.values() if values is not None)
    unknown = np.full(num, UNKNOWN)
    _write(
        path,
        {
            name: _optional(unknown) if values is None else _integers(values)
            for name, values in columns.items()
        },
    )


def _integers(values: Any) -> pa.Array:
    return pa.array(np.asarray(values, dtype=np.int64))


def _floats(values: list[float]) -> pa.Array:
    return pa.array(np.array(values, dtype=np.float64))


def _optional(values: Any) -> pa.Array:
    """Integers, null where UNKNOWN."""
    column = np.asarray(values, dtype=np.int64)
    return pa.array(column, mask=column == UNKNOWN)


def _labels(codes: npt.NDArray[np.int8], labels: Seq[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(labels, pa.string()))


def _write(path: Path, columns: dict[str, pa.Array]) -> None:
    table = pa.Table.from_arrays(list(columns.values()), names=list(columns))
    pq.write_table(table, path, compression="zstd")
