"""INV-6 across processes, hash seeds and working directories."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from random_cases import run_files

POLICIES = ("paged", "contiguous", "faulty_policies:HashOrdered")
SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from random_cases import config_of, trace_of
from kvtwin.sim import simulate

columns = np.random.default_rng(3).integers(1, 40, (3, 60))
arrivals = (columns[0] // 30 * 10**8).cumsum()  # most at once
trace = trace_of(list(zip(arrivals.tolist(), *columns[1:].tolist())))
for number, policy in enumerate(sys.argv[2:]):
    config = config_of(policy, num_gpu_blocks_override=30, block_size=4, max_model_len=81,
                       growth_tokens=5, compaction=True, cost="roofline")
    simulate(trace, config, Path(sys.argv[1], str(number)), snapshots=True, decisions=True)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, bytes]]]:
    """By policy, the files of two processes."""
    directories = [tmp_path_factory.mktemp(f"seed{seed}") for seed in (1, 2)]
    tests = Path(__file__).parents[1]
    for seed, directory in enumerate(directories, start=1):
        path = os.pathsep.join(
            [str(tests), str(tests / "stateful"), os.environ.get("PYTHONPATH", "")]
        )
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(directory / "out"), *POLICIES],
            check=True,
            cwd=directory,
            env=os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": path},
        )
    return {
        policy: [run_files(directory / "out" / str(number)) for directory in directories]
        for number, policy in enumerate(POLICIES)
    }


@pytest.mark.parametrize("policy", POLICIES[:2])
def test_processes_write_the_same_bytes(
    policy: str, runs: dict[str, list[dict[str, bytes]]]
) -> None:
    first, second = runs[policy]
    assert set(first) == {
        "run.json",
        "requests.parquet",
        "timeline.parquet",
        "snapshots.parquet",
        "decisions.parquet",
    }
    assert first == second


def test_an_order_that_depends_on_hashes_is_seen(
    runs: dict[str, list[dict[str, bytes]]],
) -> None:
    first, second = runs[POLICIES[2]]
    assert first["decisions.parquet"] != second["decisions.parquet"]
