"""Several policies on one trace: run them, and gather what they found."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvtwin.sim import RunConfig, load_cost, policy_names, size_pool
from kvtwin.traces import Trace, UserError

from .definitions import UNCALIBRATED_NOTE
from .layout import run_dir_name
from .metrics import NS_PER_S
from .simulate_all import Job, simulate_all
from .single_request import single_request_jobs
from .verdict import comparison_verdict


def parse_policies(listed: str) -> list[str]:
    """The policies in a comma-separated list, in its order.

    Raises:
        UserError: an empty list, an unknown name, or a policy given twice.
    """
    names = [name.strip() for name in listed.split(",") if name.strip()]
    known = policy_names()
    if not names:
        raise UserError(f"--policies names no policy; choose from {', '.join(known)}")
    for name in names:
        if name not in known and ":" not in name:
            raise UserError(
                f"--policies names {name!r}, which is not a policy; choose from "
                f"{', '.join(known)}, or package.module:Class"
            )
        if names.count(name) > 1:
            raise UserError(f"--policies names {name} twice; name each policy once")
    return names


def compare_policies(
    trace: Trace, config: RunConfig, names: Sequence[str], out: Path, *, paranoid: bool
) -> dict[str, Any]:
    """Run each policy into its directory in `out`; return the object of comparison.json.

    Raises:
        UserError: a policy cannot run under `config`.
    """
    jobs = [
        Job(trace, dataclasses.replace(config, policy=name), out / run_dir_name(name), paranoid)
        for name in names
    ]
    summaries = simulate_all([*jobs, *single_request_jobs(config, out)])[: len(jobs)]
    return comparison(config, trace, summaries)


def comparison(
    config: RunConfig, trace: Trace, summaries: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Everything that a comparison found, as comparison.json holds it; no times, hosts or paths."""
    shared = config.to_dict()
    del shared["policy"]
    pool = size_pool(config)
    calibrated = all(summary["calibrated"] for summary in summaries)
    return {
        "verdict": comparison_verdict(summaries),
        "config": shared,
        "pool": dataclasses.asdict(pool),
        "notes": [*pool.notes, *load_cost(config).notes],
        "trace": {
            "name": trace.name,
            "format": trace.format,
            "num_requests": trace.num_requests,
            "span_s": int(trace.chunks[-1].arrival_ns[-1]) / NS_PER_S,
            "saturated": trace.saturated,
            "num_clipped": trace.num_clipped,
            "skipped": trace.skipped,
        },
        "latency_calibrated": calibrated,
        "latency_note": None if calibrated else UNCALIBRATED_NOTE,
        "policies": list(summaries),
    }
