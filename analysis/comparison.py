"""Several policies on one trace: run them, and gather what they found."""

import dataclasses
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from kvtwin.sim import RunConfig
from kvtwin.traces import Trace

from .definitions import latency_note
from .facts import gather_facts
from .layout import run_dir_name
from .simulate_all import Job, simulate_all
from .single_request import single_request_jobs
from .swaps import swap_notes
from .verdict import comparison_verdict
from .waiting import held_by


def compare_policies(
    trace: Trace,
    config: RunConfig,
    names: Sequence[str],
    out: Path,
    *,
    notes: Sequence[str],
    paranoid: bool,
) -> dict[str, Any]:
    """Run each policy into its directory in `out`; return the object of comparison.json, which gets `notes`, too.

    Raises:
        UserError: a policy cannot run under `config`.
    """
    jobs = [
        Job(trace, dataclasses.replace(config, policy=name), out / run_dir_name(name), paranoid)
        for name in names
    ]
    jobs += single_request_jobs(config, out)
    # What draws the figures takes as long to load as a policy takes to run.
    summaries = simulate_all(jobs, lambda: import_module("kvtwin.analysis.report"))[: len(names)]
    return comparison(config, trace, summaries, notes)


def comparison(
    config: RunConfig, trace: Trace, summaries: Sequence[dict[str, Any]], notes: Sequence[str]
) -> dict[str, Any]:
    """Everything that a comparison found, as comparison.json holds it; no times, hosts or paths."""
    names = [summary["policy"] for summary in summaries]
    facts = gather_facts(config, trace, names, [*notes, *swap_notes(config, summaries)])
    del facts["config"]["policy"]
    calibrated = all(summary["calibrated"] for summary in summaries)
    return {
        "verdict": comparison_verdict(summaries),
        "held_by": held_by(summaries),
        **facts,
        "latency_calibrated": calibrated,
        "latency_note": latency_note(calibrated=calibrated, saturated=facts["trace"]["saturated"]),
        "policies": list(summaries),
    }
