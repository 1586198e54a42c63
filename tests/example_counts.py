"""How many examples a property gets: more under HYPOTHESIS_PROFILE=long."""

import os


def examples(num_in_dev: int) -> int:
    """Number of hypothesis examples for a test that needs `num_in_dev` of them in the dev profile."""
    return num_in_dev * 10 if _is_long() else num_in_dev


def fuzz_examples() -> int:
    """Number of broken files for one reader: 300, and 20,000 in the long profile."""
    return 20_000 if _is_long() else 300


def _is_long() -> bool:
    return os.environ.get("HYPOTHESIS_PROFILE") == "long"
