"""Runs small enough to be computed by hand, and what they wrote."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from random_cases import config_of, trace_of

from kvtwin.sim import simulate
from kvtwin.sim.prompts import Pieces

STEP_NS = 20_000_000  # the shortest timeline row: each step has a row of its own
_PARTS = ("live", "reserved", "internal", "rounding", "external", "free")


@dataclass(frozen=True)
class Run:
    summary: dict[str, Any]
    requests: list[dict[str, Any]]
    timeline: list[dict[str, Any]]
    decisions: list[tuple[int, str, int, int, int]]  # step, action, row, first, num

    @property
    def parts(self) -> list[tuple[int, ...]]:
        """Slots that are live, reserved, internal, rounding, external, free; a tuple a step."""
        assert all(row["cached_slots"] == 0 for row in self.timeline)
        return [tuple(row[f"{part}_slots"] for part in _PARTS) for row in self.timeline]

    @property
    def finished_steps(self) -> list[int]:
        """Number of steps that were over when each request finished."""
        return [row["finished_ns"] // STEP_NS for row in self.requests]


def run(
    policy: str,
    requests: list[tuple[int, ...]],
    directory: Path,
    num_slots: int,
    contents: list[Pieces] | None = None,
    **fields: Any,
) -> Run:
    """Requests of (arrival in ns, prompt, output[, max_tokens]) in a pool of `num_slots` slots.

    `contents`: what they are made of. A block has one slot and a step lasts STEP_NS, unless the fields say otherwise.
    """
    block_size = fields.setdefault("block_size", 1)
    assert num_slots % block_size == 0
    settings = {"cost": f"constant:{STEP_NS}", "num_gpu_blocks_override": num_slots // block_size}
    config = config_of(policy, **(settings | fields))
    summary = simulate(
        trace_of(requests, contents), config, directory, decisions=True, paranoid=True
    )
    assert json.loads((directory / "run.json").read_text())["summary"] == summary
    tables = {
        name: pq.read_table(directory / f"{name}.parquet").to_pylist()
        for name in ("requests", "timeline", "decisions")
    }
    decisions = [
        tuple(decision[name] for name in ("step", "action", "row", "first", "num"))
        for decision in tables["decisions"]
    ]
    return Run(summary, tables["requests"], tables["timeline"], decisions)
