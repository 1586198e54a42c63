"""The benchmark is scripts, not a package: its folder is where they find each other."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
