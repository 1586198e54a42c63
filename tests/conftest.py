"""Shared test set-up: hypothesis profiles, the optional reference data, and what random runs share."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from random_cases import write_costs

# Deadlines are timing limits, so there are none. `long` runs the same properties with ten times the examples.
_COMMON = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("dev", max_examples=100, derandomize=True, **_COMMON)
settings.register_profile("long", max_examples=1000, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

# What a test calls that makes a property of a function or a machine inside it.
_DRAWS = {"given", "run_state_machine_as_test"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`-m hypothesis` also selects tests that define their property inside, not only those that are one."""
    for item in items:
        if isinstance(item, pytest.Function) and _DRAWS.intersection(
            item.function.__code__.co_names
        ):
            item.add_marker("hypothesis")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Folder of reference data outside the project; tests that need it are skipped where it is absent."""
    root = Path(os.environ.get("KVTWIN_SHARED", Path(__file__).parents[2] / "shared"))
    if not root.is_dir():
        pytest.skip(f"reference data not found at {root}; set KVTWIN_SHARED to run this test")
    return root


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Cost settings for random runs: constant steps, and files whose terms overtake each other."""
    return write_costs(tmp_path_factory.mktemp("costs"))


@pytest.fixture(scope="module")
def out_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all the runs of a property; each run replaces the one before."""
    return tmp_path_factory.mktemp("runs")
