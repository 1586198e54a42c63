"""One trace, one policy, one run directory."""

from __future__ import annotations

import gc
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvtwin.traces import Trace

from .catalog import find_model
from .config import RunConfig
from .cost import load_cost
from .decisions import Decisions
from .engine_contract import EngineContract
from .executor import CostExecutor
from .plan import Limits
from .policies.policy import PolicySettings
from .pool import PoolSize, size_pool
from .recorder import MAX_ROWS, Recorder
from .registry import find_engine, find_policy
from .requests import RequestTable
from .sizing.estimates import activation_bytes_per_token
from .summary import summarize

# Timeline rows of a saturated run start this short, and double as the run goes on.
_SHORTEST_ROW_NS = 20_000_000


def policy_settings(config: RunConfig, pool: PoolSize) -> PolicySettings:
    """The options of `config` that allocators read, with its pool."""
    per_token = activation_bytes_per_token(find_model(config.model), config.tensor_parallel_size)
    return PolicySettings(
        num_slots=pool.num_slots,
        max_model_len=pool.max_model_len,
        max_num_seqs=config.max_num_seqs,
        block_size=config.block_size,
        admission=config.admission,
        watermark=config.watermark,
        growth_tokens=config.growth_tokens,
        fit=config.fit,
        compaction=config.compaction,
        activation_tokens=pool.pool_bytes // per_token,
    )


def simulate(
    trace: Trace,
    config: RunConfig,
    out_dir: Path,
    *,
    snapshots: bool = False,
    decisions: bool = False,
    paranoid: bool = False,
    engine_type: type[EngineContract] | None = None,
) -> dict[str, Any]:
    """Run `trace` under `config.policy` on a simulated clock, write the run directory, return its summary.

    `out_dir` is made if need be. `paranoid` recounts the pool after every plan and commit. `engine_type`
    takes the place of the policy's own engine. Raises UserError for what the user can mend.
    """
    # Here, because a machine with a GPU may have neither simpy nor pyarrow, and needs the rest.
    from . import run_directory
    from .drive import drive

    started = time.perf_counter()
    pool, cost = size_pool(config), load_cost(config)
    policy = find_policy(config.policy)(policy_settings(config, pool))
    requests = RequestTable.from_trace(trace, policy, pool.max_model_len, config.max_tokens)
    span_ns = requests.arrival_ns[-1]
    recorder = Recorder(pool.num_slots, max(_SHORTEST_ROW_NS, 2 * span_ns // MAX_ROWS), snapshots)
    log = Decisions() if decisions else None
    limits = Limits(config.max_num_seqs, config.max_num_batched_tokens)
    engine = (engine_type or find_engine(type(policy)))(requests, policy, limits, recorder, log)
    engine.paranoid = paranoid
    engine_started = time.perf_counter()
    # Sequences that run are in reference cycles, but those that ended are not: there is nothing to collect.
    gc.disable()
    try:
        end_ns = drive(engine, CostExecutor(cost))
    finally:
        gc.enable()
    engine_s = time.perf_counter() - engine_started
    engine.finish(end_ns)
    summary = {
        "policy": config.policy,
        **summarize(requests, recorder, pool.num_slots, end_ns),
        "num_clipped": len(requests.clipped_rows.union(trace.clipped_rows)),
        "kv_bytes_per_token": pool.kv_bytes_per_token,
        "peak_used_share": 1 - engine.least_free_slots / pool.num_slots,
        "moved_slots": engine.moved_slots,
        "recomputed_tokens": engine.recomputed_tokens,
        "calibrated": cost.calibrated,
        "saturated": trace.saturated,
    }
    out_dir.mkdir(parents=True, exist_ok=True)
    run_directory.write_requests(out_dir / "requests.parquet", requests)
    run_directory.write_timeline(out_dir / "timeline.parquet", recorder.rows)
    if snapshots:
        run_directory.write_snapshots(out_dir / "snapshots.parquet", recorder.rows)
    if log is not None:
        run_directory.write_decisions(out_dir / "decisions.parquet", log)
    run = {
        "schema_version": run_directory.SCHEMA_VERSION,
        "config": {
            **config.to_dict(),
            "resolved_max_model_len": pool.max_model_len,
            "pool_slots": pool.num_slots,
            "pool_bytes": pool.pool_bytes,
            "pool_terms": [list(term) for term in pool.terms],
            "cost_model": cost.to_dict(),
            "notes": [*pool.notes, *cost.notes],
        },
        "trace": {"name": trace.name, "format": trace.format, "num_requests": trace.num_requests},
        "summary": summary,
    }
    run_directory.write_json(out_dir / "run.json", run)
    meta = {
        "kvtwin": version("kvtwin"),
        "python": platform.python_version(),
        "host": platform.node(),
        "wall_s": time.perf_counter() - started,
        "engine_s": engine_s,
    }
    run_directory.write_json(out_dir / "meta.json", meta)
    return summary
