"""Everything that `kvtwin size` says, as JSON types; no times, hosts or paths."""

from dataclasses import asdict
from typing import Any

from kvtwin.sim.sizing.accounting import Accounting
from kvtwin.sim.sizing.changes import changes_that_work
from kvtwin.sim.sizing.deployment import Deployment
from kvtwin.sim.sizing.engine_log import LogFacts, check_log, first_disagreement
from kvtwin.sim.sizing.levers import levers
from kvtwin.sim.sizing.size import Sizing, size
from kvtwin.sim.sizing.stage_bytes import kept_by_window, kv_bytes_per_token

from .from_log import version_of
from .options import SizeInputs
from .questions import mix_answer, prefix_answer, request_answer, session_answer
from .setting import Setting

MIB = 2**20


def answer(inputs: SizeInputs, setting: Setting, log: LogFacts | None) -> dict[str, Any]:
    """The sizing, and an answer to each question that was asked (None: not asked)."""
    deployment, accounting = setting.deployment, setting.accounting
    sizing = size(deployment, accounting)
    holds_a_token = sizing.pool.fits(1)
    return {
        "model": deployment.model.name,
        "gpu": deployment.gpu.name,
        "accounting": accounting.name,
        "accounting_summary": accounting.summary,
        "setting": _setting(deployment, accounting),
        "terms": [{**asdict(term), "mib": term.num_bytes / MIB} for term in sizing.terms],
        "available_bytes": sizing.available_bytes,
        "kv": {
            "bytes_per_token": sizing.kv_bytes_per_token,
            "bytes_per_token_all_layers": kv_bytes_per_token(deployment, sizing.stage),
            "fixed_bytes_per_request": sizing.fixed_bytes_per_request,
        },
        "pool": _pool(sizing),
        "concurrency": float(sizing.concurrency),
        "longest_request": sizing.longest_request,
        "longest_allowed": sizing.longest_allowed,
        "lengths": mix_answer(inputs, sizing) if holds_a_token else None,
        "request": request_answer(inputs, sizing),
        "shared_prefix": prefix_answer(inputs, sizing),
        "session": session_answer(inputs, sizing, accounting),
        "engine_says": list(sizing.pool.sentences(deployment)),
        "levers": [asdict(lever) for lever in levers(deployment, accounting)],
        "log": None if log is None else _log(log, setting),
        "starts": sizing.starts,
        "works": sizing.works,
        "problem": sizing.problem,
        "changes_that_work": list(changes_that_work(sizing, accounting)),
        "notes": [*setting.notes, *_notes(sizing, accounting)],
    }


def _setting(deployment: Deployment, accounting: Accounting) -> dict[str, Any]:
    return {
        "max_model_len": deployment.max_model_len,
        "tensor_parallel_size": deployment.tensor_parallel_size,
        "pipeline_parallel_size": deployment.pipeline_parallel_size,
        "data_parallel_size": deployment.data_parallel_size,
        "num_gpus": deployment.num_gpus,
        "memory_utilization": accounting.utilization(deployment),
        "utilization_flag": accounting.utilization_flag,
        "utilization_meaning": accounting.utilization_meaning,
        "max_num_seqs": accounting.max_num_seqs(deployment),
        "max_num_batched_tokens": accounting.max_num_batched_tokens(deployment),
        "kv_cache_dtype": deployment.kv_cache_dtype,
        "enforce_eager": deployment.enforce_eager,
    }


def _pool(sizing: Sizing) -> dict[str, Any]:
    pool = sizing.pool
    return {
        "num_blocks": sizing.num_blocks,
        "num_reserved_blocks": pool.num_reserved_blocks,
        "block_size": pool.block_size,
        "block_bytes": pool.block_bytes,
        "pool_bytes": pool.pool_bytes,
        "num_tokens": pool.num_tokens,
        "derived": pool.derived,
        "stage": sizing.stage,
    }


def _log(log: LogFacts, setting: Setting) -> dict[str, Any]:
    """What the log states against what follows from it, and whether it agrees with itself.

    All of the deployment that the log is of, whatever flags change.
    """
    assert setting.logged is not None
    sizing = size(setting.logged, setting.accounting)
    per_token = kv_bytes_per_token(sizing.deployment, sizing.stage)
    checks = check_log(log, per_token, sizing.pool.derived)
    first = first_disagreement(checks)
    verdicts = [check.verdict for check in checks]
    predicted = {
        "available_kv": sizing.available_bytes,
        "num_gpu_blocks": sizing.num_blocks,
        "num_tokens": sizing.pool.num_tokens_printed_by(version_of(log)),
        "max_concurrency": float(sizing.concurrency),
    }
    compared = []
    for name, value in predicted.items():
        stated = getattr(log, name)
        if stated is not None:
            printed = float(stated.value * stated.unit_bytes)
            compared.append(
                {
                    "figure": name,
                    "line_number": stated.line_number,
                    "printed": printed,
                    "predicted": value,
                    "difference": value / printed - 1 if printed else None,
                }
            )
    return {
        "engine": log.engine,
        "is_changed": setting.logged != setting.deployment,
        "version": None if log.version is None else log.version.value,
        "num_agree": verdicts.count("agrees"),
        "num_disagree": verdicts.count("disagrees"),
        "num_not_applicable": verdicts.count("not applicable"),
        "checks": [
            {"verdict": check.verdict, "line_number": check.line_number, "text": str(check)}
            for check in checks
        ],
        "first_disagreement": None if first is None else str(first),
        "compared": compared,
        "notes": list(log.notes),
    }


def _stores_windows_in_full(sizing: Sizing) -> bool:
    """Whether a request grows by more than the layers without a window keep."""
    deployment = sizing.deployment
    kept = kept_by_window(deployment, sizing.stage)
    return len(kept) > (0 in kept) and sizing.kv_bytes_per_token > kept.get(0, 0)


def _notes(sizing: Sizing, accounting: Accounting) -> list[str]:
    """What a reader of the result must know."""
    deployment, pool = sizing.deployment, sizing.pool
    notes = [deployment.model.note] if deployment.model.note else []
    estimates = [term.name for term in sizing.terms if term.source == "estimate"]
    if estimates:
        notes.append(
            f"UNCALIBRATED: {', '.join(name.replace('_', ' ') for name in estimates)}: estimated, where "
            "an engine measures at its start; give --engine-log or the term itself "
            "(reports/startup-logs.md: how far off such sizes were)"
        )
    if pool.derived:
        notes.append(f"the size in tokens is derived: {pool.derived}")
    if _stores_windows_in_full(sizing):
        notes.append(f"{accounting.name} stores layers with a sliding window in full")
    return notes
