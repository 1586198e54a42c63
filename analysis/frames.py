"""From a run directory to pandas frames."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from kvtwin.traces import UserError

from .layout import REQUESTS, RUN_JSON, SNAPSHOTS, TIMELINE


@dataclass(frozen=True)
class RunFrames:
    """One run directory, read. `snapshots` is None where the run did not record any."""

    run: dict[str, Any]
    requests: pd.DataFrame
    timeline: pd.DataFrame
    snapshots: pd.DataFrame | None

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = self.run["summary"]
        return summary

    @property
    def policy(self) -> str:
        return str(self.summary["policy"])


def read_run(directory: Path) -> RunFrames:
    """Read the run directory `directory`.

    Raises:
        UserError: a file of the run directory is missing or run.json is not valid JSON.
    """
    for name in (RUN_JSON, REQUESTS, TIMELINE):
        if not (directory / name).is_file():
            raise UserError(f"{directory} has no {name}; it is not a complete run directory")
    try:
        run = json.loads((directory / RUN_JSON).read_text())
    except ValueError as error:
        raise UserError(f"{directory / RUN_JSON} is not valid JSON: {error}") from error
    snapshots = directory / SNAPSHOTS
    return RunFrames(
        run=run,
        requests=pd.read_parquet(directory / REQUESTS),
        timeline=pd.read_parquet(directory / TIMELINE),
        snapshots=pd.read_parquet(snapshots) if snapshots.is_file() else None,
    )
