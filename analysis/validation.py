"""The report of a validation, from what `kvtwin validate` left in its directory."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from kvtwin.traces import UserError

from .figures import validation_page
from .figures.validation_page import Pair
from .frames import read_run
from .layout import (
    MEMORY_MAPS_PNG,
    MEMORY_OVER_TIME_SVG,
    REPORT_HTML,
    STEP_TIMES_SVG,
    STEPS,
    VALIDATION_JSON,
)
from .page import render
from .parts import PARTS
from .report import keeps_kv
from .validation_cells import KINDS, audit_rows, facts, number_cell, outcome, verdict


def write_validation_report(out: Path) -> None:
    """Write figures and report.html beside the validation.json of `out`.

    Raises:
        UserError: a file of the validation is missing or not valid JSON.
    """
    validation = _read_json(out / VALIDATION_JSON)
    pairs = [_read_pair(out, policy) for policy in validation["policies"] if policy["executed_dir"]]
    figures = _draw(pairs)
    for name, content in figures.items():
        (out / name).write_bytes(content)
    (out / REPORT_HTML).write_text(render_validation(validation, figures))


def render_validation(validation: Mapping[str, Any], figures: Mapping[str, bytes]) -> str:
    """The page, with those figures that there are."""
    return render(
        "validation.html.j2",
        figures,
        validation=validation,
        verdict=verdict(validation),
        facts=facts(validation),
        kinds=KINDS,
        audit=audit_rows(validation),
        parts=PARTS,
        number_cell=number_cell,
        outcome=outcome,
    )


def _draw(pairs: Sequence[Pair]) -> dict[str, bytes]:
    """Content of each figure file by name."""
    figures = {}
    kept = [pair for pair in pairs if keeps_kv(pair.predicted.summary)]
    if kept:
        figures[MEMORY_OVER_TIME_SVG] = validation_page.memory_over_time(kept)
        mapped = [pair for pair in kept if _has_maps(pair)]
        if mapped:
            figures[MEMORY_MAPS_PNG] = validation_page.memory_maps(mapped)
    if pairs:
        figures[STEP_TIMES_SVG] = validation_page.step_scatter(pairs)
    return figures


def _has_maps(pair: Pair) -> bool:
    return pair.predicted.snapshots is not None and pair.executed.snapshots is not None


def _read_pair(out: Path, policy: Mapping[str, Any]) -> Pair:
    executed = out / policy["executed_dir"]
    if not (executed / STEPS).is_file():
        raise UserError(f"{executed} has no {STEPS}; it is not the directory of an execution")
    return Pair(
        policy["policy"],
        read_run(out / policy["predicted_dir"]),
        read_run(executed),
        pd.read_parquet(executed / STEPS),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    return content
