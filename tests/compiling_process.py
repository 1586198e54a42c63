"""Run Python in a process that compiles kernels; the tests' own process interprets them."""

import os
import subprocess
import sys
from pathlib import Path

# Compiled kernels are kept between runs: a second run of the tests need not wait for ptxas again.
CACHE = Path(__file__).parents[1] / "out" / "triton-cache"


def run_compiling(*arguments: str, exit_codes: tuple[int, ...] = (0,)) -> str:
    """Run `python ARGUMENTS` without TRITON_INTERPRET and return what it printed.

    An exit code that is not among `exit_codes` fails the test with what went to standard error.
    """
    environment = {name: os.environ[name] for name in os.environ if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(CACHE)
    run = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode in exit_codes, run.stderr
    return run.stdout
