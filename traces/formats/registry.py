"""Which formats there are. A new one is a file in this folder and one line here."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

if TYPE_CHECKING:  # numpy is not loaded for a list of names
    from ..trace import Trace, TraceChunk
    from .source import Head, Source

# Name to module of this folder.
FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "azure": "azure",
        "burstgpt": "burstgpt",
        "vidur": "vidur",
        "mooncake": "mooncake",
        "mooncake-sessions": "mooncake_sessions",
        "mooncake-delta": "mooncake_delta",
        "bailian": "bailian",
        "weka": "weka",
        "tracelab": "tracelab",
        "tracelab-replay": "tracelab_replay",
        "otel": "otel",
        "servegen": "servegen",
        "sharegpt": "sharegpt",
        "vllm-bench": "vllm_bench",
        "llmservingsim": "llmservingsim",
        "columns": "columns",
        "kvtwin-csv": "kvtwin_csv",
        "kvtwin-parquet": "kvtwin_parquet",
    }
)

WRITABLE_FORMATS = ("kvtwin-csv", "kvtwin-parquet", "vidur", "mooncake")


class ReadableFormat(Protocol):
    """What the module of a format defines at its top level."""

    SHAPE: str  # what messages say a file of this format looks like

    def recognises(self, head: "Head") -> bool:
        """Whether a file or folder that begins like this is in this format."""

    def read(self, source: "Source") -> "Iterator[TraceChunk]":
        """The requests in order of arrival, the first at 0, in chunks of moderate length.

        Rows left out, keys not read and assumptions go into `source`. Raises UserError for anything
        that is wrong in the file; without any requests it may just end.
        """


class WritableFormat(ReadableFormat, Protocol):
    """What the module of a format that can also be written defines."""

    # Those of "nanoseconds", "max_tokens", "sessions", "priority", "num_samples" that it can hold.
    CARRIES: frozenset[str]
    # It can hold what prompts are made of by so many tokens, 1: token by token; None: not at all.
    CONTENT_TOKENS: int | None

    def write(self, trace: "Trace", file: BinaryIO) -> None:
        """Writes the trace into an open file."""


def load_format(name: str) -> ReadableFormat:
    """The module of a format. Loaded on use: pyarrow takes longer to import than the rest."""
    return cast(ReadableFormat, import_module(f".{FORMATS[name]}", __package__))
