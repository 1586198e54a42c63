"""What the processor calls itself."""

import platform
from pathlib import Path


def cpu_model() -> str:
    """The processor's own name where the system tells it, else its architecture."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
