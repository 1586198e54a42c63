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
    from .agents import AgentMix, generate_agents
    from .content import Content, content_of_block_ids
    from .files import Scan, open_trace, scan_trace, whole_file, write_trace
    from .formats.columns import parse_columns
    from .formats.source import ReadOptions
    from .hits import PrefixHits, prefix_hits
    from .lengths import LengthSummary
    from .mixes import Mix, generate
    from .prefixes import Prefixes, find_prefixes
    from .selection import Selection, select, spread_batches
    from .sessions import Sessions, Waits, waits
    from .summary import SessionSummary, TraceSummary, describe, describe_file
    from .synth import synthesize
    from .trace import UNKNOWN_MAX_TOKENS, Trace, TraceChunk
else:
    _HOMES = {
        "LengthSummary": "lengths",
        "SessionSummary": "summary",
        "describe_file": "summary",
        "PrefixHits": "hits",
        "prefix_hits": "hits",
        "AgentMix": "agents",
        "generate_agents": "agents",
        "Mix": "mixes",
        "generate": "mixes",
        "parse_columns": "formats.columns",
        "Selection": "selection",
        "select": "selection",
        "spread_batches": "selection",
        "TraceSummary": "summary",
        "describe": "summary",
        "open_trace": "files",
        "scan_trace": "files",
        "Scan": "files",
        "ReadOptions": "formats.source",
        "Content": "content",
        "content_of_block_ids": "content",
        "Prefixes": "prefixes",
        "find_prefixes": "prefixes",
        "Sessions": "sessions",
        "Waits": "sessions",
        "waits": "sessions",
        "write_trace": "files",
        "whole_file": "files",
        "synthesize": "synth",
        "UNKNOWN_MAX_TOKENS": "trace",
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
    "SessionSummary",
    "PrefixHits",
    "prefix_hits",
    "parse_columns",
    "Selection",
    "select",
    "spread_batches",
    "TraceSummary",
    "Content",
    "content_of_block_ids",
    "Prefixes",
    "find_prefixes",
    "Sessions",
    "Waits",
    "waits",
    "UNKNOWN_MAX_TOKENS",
    "Lengths",
    "Workload",
    "ReadOptions",
    "open_trace",
    "scan_trace",
    "Scan",
    "write_trace",
    "whole_file",
    "synthesize",
    "AgentMix",
    "generate_agents",
    "Mix",
    "generate",
    "describe",
    "describe_file",
]
