"""Runs in a closed loop that are small enough to be computed by hand, times in steps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from hand_runs import STEP_NS
from random_cases import config_of, trace_of

from kvtwin.sim import simulate
from kvtwin.traces import Sessions, Trace


def sessions_of(*calls: tuple[int, ...]) -> Trace:
    """(arrival in steps, prompt, output, session, call, after_call, think in steps, join_call); think -1: unknown."""
    trace = trace_of([(int(at * STEP_NS), *lengths) for at, *lengths, _, _, _, _, _ in calls])
    columns = np.array([call[3:] for call in calls]).T
    think_ns = np.where(columns[3] < 0, -1, columns[3] * STEP_NS).astype(np.int64)
    names = (*columns[:3].astype(np.int64), think_ns, columns[4].astype(np.int64))
    (chunk,) = trace.chunks
    return replace(trace, chunks=(replace(chunk, sessions=Sessions(*names)),))


def loop(trace: Trace, directory: Path, policy: str = "paged", **fields: Any) -> dict[str, Any]:
    """A closed loop in steps of STEP_NS and a pool of 64 blocks of one slot: its summary and requests."""
    settings = {"block_size": 1, "num_gpu_blocks_override": 64, "cost": f"constant:{STEP_NS}"}
    config = config_of(policy, **(settings | {"closed_loop": True} | fields))
    summary = simulate(trace, config, directory)
    requests = pq.read_table(directory / "requests.parquet").to_pydict()
    return {"summary": summary, **requests}


def steps(times_ns: list[int | None]) -> list[float | None]:
    return [None if time_ns is None else time_ns / STEP_NS for time_ns in times_ns]
