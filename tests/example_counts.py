"""How many examples a property gets: ten times as many under HYPOTHESIS_PROFILE=long."""

import os


def examples(num_in_dev: int) -> int:
    """Number of hypothesis examples for a test that needs `num_in_dev` of them in the dev profile."""
    return num_in_dev * 10 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else num_in_dev
