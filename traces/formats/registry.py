"""Which formats there are. A new one is a file in this folder and one line here."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

if TYPE_CHECKING:  # numpy is not loaded for a list of names
    from ..trace import Trace

# Name to module of this folder.
FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "azure": "azure",
        "vidur": "vidur",
        "mooncake": "mooncake",
        "kvtwin-csv": "kvtwin_csv",
        "kvtwin-parquet": "kvtwin_parquet",
    }
)

WRITABLE_FORMATS = ("kvtwin-csv", "kvtwin-parquet", "vidur")


class ReadableFormat(Protocol):
    """What the module of a format defines at its top level."""

    SHAPE: str  # what messages say a file of this format looks like

    def recognises(self, first_line: bytes) -> bool:
        """Whether a file whose first line that is not blank is this (no BOM) is in this format."""

    def read(self, path: Path) -> "Trace":
        """The whole trace. Raises UserError for anything that is wrong in the file."""


class WritableFormat(ReadableFormat, Protocol):
    """What the module of a format that can also be written defines."""

    CARRIES: frozenset[str]  # those of "max_tokens", "content ids" that the format can hold

    def write(self, trace: "Trace", file: BinaryIO) -> None:
        """Writes the trace into an open file."""


def load_format(name: str) -> ReadableFormat:
    """The module of a format. Loaded on use: pyarrow takes longer to import than the rest."""
    return cast(ReadableFormat, import_module(f".{FORMATS[name]}", __package__))
