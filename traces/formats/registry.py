"""Which formats there are. A new one is a file in this folder and one line here."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

if TYPE_CHECKING:  # numpy is not loaded for a list of names
    from ..trace import Trace


class FormatModule(Protocol):
    """What the file of a format defines at its top level."""

    def recognises(self, first_line: bytes) -> bool:
        """Whether a file that starts with this line (no BOM, not blank) is in this format."""

    def read(self, path: Path) -> "Trace":
        """The whole trace. Raises UserError, one line, for anything that is wrong in the file."""

    def write(self, trace: "Trace", file: BinaryIO) -> None:
        """Writes the trace; only formats registered as writable have it."""


@dataclass(frozen=True)
class Format:
    """One registration. `shape` is what messages say a file of the format looks like."""

    module: str
    shape: str
    writable: bool = False
    keeps_max_tokens: bool = False
    keeps_content: bool = False

    def load(self) -> FormatModule:
        # Loaded on use: pyarrow takes longer to import than the whole command line.
        return cast(FormatModule, import_module(f".{self.module}", __package__))


FORMATS: Mapping[str, Format] = MappingProxyType({
    "azure": Format("azure", "CSV with TIMESTAMP, ContextTokens, GeneratedTokens"),
    "vidur": Format("vidur", "CSV with arrived_at, num_prefill_tokens, num_decode_tokens", writable=True),
    "mooncake": Format("mooncake", "JSONL with timestamp, input_length, output_length, hash_ids"),
    "kvtwin-csv": Format("kvtwin_csv", "CSV with arrival_ns, num_prompt_tokens, num_output_tokens", writable=True, keeps_max_tokens=True),
    "kvtwin-parquet": Format("kvtwin_parquet", "Parquet with arrival_ns, num_prompt_tokens, num_output_tokens", writable=True, keeps_max_tokens=True, keeps_content=True),
})
