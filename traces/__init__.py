"""What came in: readers of public trace formats, generators, the Trace.

What needs numpy is loaded at first use, so that the command line can name formats and workloads
and catch a UserError without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .errors import UserError
from .formats.registry import FORMATS, WRITABLE_FORMATS
from .workloads import WORKLOADS, Lengths, Workload

if TYPE_CHECKING:
    from .files import open_trace, write_trace
    from .summary import LengthSummary, TraceSummary, describe
    from .synth import synthesize
    from .trace import UNKNOWN_MAX_TOKENS, ContentIds, Trace, TraceChunk
else:
    _HOMES = {
        "LengthSummary": "summary",
        "TraceSummary": "summary",
        "describe": "summary",
        "open_trace": "files",
        "write_trace": "files",
        "synthesize": "synth",
        "UNKNOWN_MAX_TOKENS": "trace",
        "ContentIds": "trace",
        "Trace": "trace",
        "TraceChunk": "trace",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)


__all__ = [
    "FORMATS",
    "WRITABLE_FORMATS",
    "WORKLOADS",
    "UserError",
    "Trace",
    "TraceChunk",
    "LengthSummary",
    "TraceSummary",
    "ContentIds",
    "UNKNOWN_MAX_TOKENS",
    "Lengths",
    "Workload",
    "open_trace",
    "write_trace",
    "synthesize",
    "describe",
]
