"""A cost model fitted to what clients of a served engine saw."""

from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from kvtwin.traces import UserError
from kvtwin.traces.formats.vllm_bench import read_bench_requests

from ..cost import CostModel
from ..fit_record import FitRecord
from .bench_steps import bench_steps
from .fit import Fit, fit_steps, predicted_ns, relative_errors

LEAST_STEPS = 50
# Relative error of a first fit from which on a step is taken for an interruption of the machine, or
# for one of which more is unknown than could be seen.
OUTLIER = 0.5
SCOPE = (
    "fitted to gaps between tokens as clients of a server saw them: server, sampling and transport are in them, "
    "time in front of the first step of a request is not"
)


@dataclass(frozen=True)
class BenchFit:
    """A fitted model, and how many steps it leaves out, by reason."""

    cost: CostModel
    fit: Fit
    unknown: Counter[str]
    skipped: Counter[str]  # requests


def fit_bench(
    path: Path, *, model: str, device: str, max_num_batched_tokens: int, source: str, date: str
) -> BenchFit:
    """Fit to a result of `vllm bench serve --save-detailed` whose engine had that budget for a step.

    Raises UserError for a bad file, or where too few steps are known.
    """
    requests, skipped = read_bench_requests(path)
    samples, unknown = bench_steps(requests, max_num_batched_tokens)
    if samples is None or len(samples.totals) < LEAST_STEPS:
        num_known = 0 if samples is None else len(samples.totals)
        reasons = "; ".join(f"{num:,} x {why}" for why, num in unknown.items()) or "no requests"
        raise UserError(
            f"{path}: what {num_known} steps did can be told from outside, at least {LEAST_STEPS} are needed; "
            f"left out: {reasons}"
        )
    errors = relative_errors(predicted_ns(samples, fit_steps(samples)), samples.typical_ns)
    kept = np.flatnonzero(errors <= OUTLIER)
    if len(kept) >= LEAST_STEPS and len(kept) < len(errors):
        unknown["far from a first fit"] += len(errors) - len(kept)
        samples = samples.at(kept)
    fit = fit_steps(samples)
    record = FitRecord(
        source=source,
        device=device,
        backend="served",
        dtype="as served",
        model=model,
        num_layers=None,
        num_heads=None,
        num_kv_heads=None,
        head_dim=None,
        block_size=None,
        date=date,
        versions={"kvtwin": version("kvtwin")},
        num_points=fit.num_points,
        in_sample=fit.in_sample,
        cross_validated=fit.cross_validated,
        noise=fit.noise,
    )
    cost = CostModel(f"fitted-{path.stem}", True, (fit.term(),), (SCOPE, *fit.notes()), record)
    return BenchFit(cost, fit, unknown, skipped)
