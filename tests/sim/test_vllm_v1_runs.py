"""The V1 policies in runs: against `paged`, which has another scheduler, and against books kept from scratch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from example_counts import examples
from hand_runs import run
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import config_of, configs, run_files, trace_of, traces

from kvtwin.sim import RunConfig, simulate
from kvtwin.sim.plan import Plan
from kvtwin.sim.vllm_v1.engine import V1Engine
from kvtwin.traces import Trace, UserError

V1 = ("vllm-v1", "vllm-v1-no-caching")


def requests_of(directory: Path) -> dict[str, list[Any]]:
    """Columns of requests.parquet but the limit of a rejection, which the null block lowers."""
    columns = pq.read_table(directory / "requests.parquet").to_pydict()
    del columns["limit_slots"]
    return columns


def test_without_caching_times_are_those_of_paged(costs: list[str], out_dir: Path) -> None:
    """One group, nothing shared, one block more for the null block: two schedulers, the same steps."""

    @settings(max_examples=examples(150))
    @given(trace=traces(), config=configs("paged", costs))
    def same(trace: Trace, config: RunConfig) -> None:
        fields = config.to_dict() | {"cost": config.cost, "watermark": 0.0}
        num_blocks = fields.pop("num_gpu_blocks_override")
        for name, more in (("paged", 0), ("vllm-v1-no-caching", 1)):
            fields["policy"] = name
            simulate(
                trace,
                RunConfig(**fields, num_gpu_blocks_override=num_blocks + more),
                out_dir / name,
                paranoid=True,
            )
        assert requests_of(out_dir / "paged") == requests_of(out_dir / "vllm-v1-no-caching")

    same()
