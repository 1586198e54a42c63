"""What the figures were measured on."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

_LIBRARIES = ("kvtwin", "numpy", "pyarrow", "simpy", "typer")


def machine_lines() -> list[str]:
    """CPU, versions, and how busy the machine is before the first measurement."""
    versions = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    load = os.getloadavg()[0]
    return [
        f"CPU: {cpu_model()}, {os.cpu_count()} cores; load average {load:.2f} at the start",
        f"Python {platform.python_version()} on {platform.system()}; {versions}",
    ]


def cpu_model() -> str:
    """The processor's own name where the system tells it, else its architecture."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
