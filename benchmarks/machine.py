"""What the figures were measured on."""

import os
import platform
from importlib.metadata import version

from kvtwin.gpu.processor import cpu_model

_LIBRARIES = ("kvtwin", "numpy", "pyarrow", "simpy", "typer")


def machine_lines() -> list[str]:
    """CPU, versions, and how busy the machine is before the first measurement."""
    versions = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    load = os.getloadavg()[0]
    return [
        f"CPU: {cpu_model()}, {os.cpu_count()} cores; load average {load:.2f} at the start",
        f"Python {platform.python_version()} on {platform.system()}; {versions}",
    ]
