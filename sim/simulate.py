"""One trace, one policy, one run directory."""

from __future__ import annotations

import gc
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvtwin.traces import Trace

from .assembly import assemble, under_policy
from .config import RunConfig
from .engine_contract import EngineContract
from .executor import CostExecutor


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
    from .drive import drive
    from .run_directory import write_json, write_run

    started = time.perf_counter()
    with under_policy(config.policy):
        assembly = assemble(
            trace,
            config,
            snapshots=snapshots,
            decisions=decisions,
            paranoid=paranoid,
            engine_type=engine_type,
        )
        engine_started = time.perf_counter()
        # Sequences that run are in reference cycles, but those that ended are not: there is nothing to collect.
        gc.disable()
        try:
            end_ns = drive(assembly.engine, CostExecutor(assembly.cost))
        finally:
            gc.enable()
        engine_s = time.perf_counter() - engine_started
        summary = assembly.finish(end_ns)
    write_run(out_dir, assembly, summary)
    meta = {
        "kvtwin": version("kvtwin"),
        "python": platform.python_version(),
        "host": platform.node(),
        "wall_s": time.perf_counter() - started,
        "engine_s": engine_s,
    }
    write_json(out_dir / "meta.json", meta)
    return summary
