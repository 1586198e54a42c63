"""An input file: its bytes, decompressed, in lines and blocks, and what a reader says about it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import UserError
from .checks import fail_at, parsed_json, shown

BOM = b"\xef\xbb\xbf"
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_COMPRESSED_SUFFIXES = (".gz", ".zst", ".zstd")
_HEAD_BYTES = 1 << 20
_READ_BYTES = 1 << 24
MAX_LINE_BYTES = 1 << 26
MAX_DOCUMENT_BYTES = 1 << 30


@dataclass(frozen=True)
class ReadOptions:
    """What a user may say about an input beside its format."""

    columns: Mapping[str, str] = field(default_factory=dict)  # field: the file's name for it
    tokenizer: str | None = None  # a file or folder, for formats that hold text
    seed: int = 0  # for formats that are distributions
    block_tokens: int | None = None  # prompt tokens of an id, where a format lets tools choose


@dataclass(frozen=True)
class Head:
    """How an input begins; what formats recognise it by. A folder has no data."""

    path: Path
    is_folder: bool
    # Decompressed, without byte order mark: 1 MiB, more if a JSON object on the first line is longer.
    data: bytes

    @cached_property
    def first_line(self) -> bytes:
        """The first line that is not blank; empty if there is none."""
        return self._first[1]

    @property
    def first_line_number(self) -> int:
        """Its number, from 1."""
        return self._first[0]

    @cached_property
    def _first(self) -> tuple[int, bytes]:
        lines = enumerate(self.data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"), 1)
        return next(((number, line.strip()) for number, line in lines if line.strip()), (1, b""))

    @cached_property
    def columns(self) -> frozenset[str]:
        """The names in the first line, if it is the header of a CSV file."""
        return frozenset(header_columns(self.first_line))

    @cached_property
    def row(self) -> dict[str, Any] | None:
        """The first line, if it is one complete JSON object."""
        value = parsed_json(self.first_line) if self.first_line.startswith(b"{") else None
        return value if isinstance(value, dict) else None

    def has_keys(self, *keys: str) -> bool:
        """Whether the first line is a JSON object with all of these keys."""
        return self.row is not None and self.row.keys() >= set(keys)


@dataclass(eq=False)
class Source:
    """What a reader reads from, and what it reports beside requests."""

    head: Head
    options: ReadOptions = field(default_factory=ReadOptions)
    skipped: Counter[str] = field(default_factory=Counter)  # rows left out, by reason
    unknown_keys: Counter[str] = field(default_factory=Counter)  # keys and columns not read: rows
    notes: list[str] = field(default_factory=list)  # what had to be assumed, a sentence each

    @property
    def path(self) -> Path:
        return self.head.path

    def place(self, line: int) -> str:
        """How messages name a line (1-based)."""
        return f"{self.path} line {line}"

    def lines(self, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
        """Lines that are not blank with their numbers from 1; blank ones are counted as skipped.

        Lines end with \\n or \\r\\n. Raises UserError if one is longer than `max_line_bytes`.
        """
        num_blank = 0
        for block in self.blocks(max_line_bytes):
            for number, line in enumerate(block.lines(), block.first_line):
                if line.strip():
                    yield number, line
                else:
                    num_blank += 1
        if num_blank:
            self.skipped["blank line"] += num_blank

    def blocks(self, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator["Block"]:
        """The file in blocks of whole lines, without byte order mark.

        Raises UserError if a line is longer than `max_line_bytes`.
        """
        line, rest = 1, b""
        with reading(self.path) as stream:
            read = stream.read(_READ_BYTES)
            mark = BOM
            while read:
                following = stream.read(_READ_BYTES)
                data = rest + read.removeprefix(mark)
                mark = b""
                end = data.rfind(b"\n") + 1
                if not end:  # perhaps lines end with \r; the last one may belong to a \r\n
                    end = data.rfind(b"\r", 0, -1) + 1
                if len(data) - end > max_line_bytes:
                    fail_at(
                        self.place(line + num_line_ends(data[:end])),
                        f"the line has more bytes than the limit of {max_line_bytes:,}",
                    )
                if not following:
                    end = len(data)
                if end:
                    block = Block(data[:end], line, num_line_ends(data[:end]))
                    line += block.num_line_ends
                    yield block
                rest, read = data[end:], following

    def document(self) -> bytes:
        """The whole file, without byte order mark. Raises UserError above 1 GiB."""
        with reading(self.path) as stream:
            data: bytes = stream.read(MAX_DOCUMENT_BYTES + 1)
        if len(data) > MAX_DOCUMENT_BYTES:
            raise UserError(
                f"{self.path} has more than the limit of {MAX_DOCUMENT_BYTES:,} bytes for a file"
                " that is one JSON document; split it"
            )
        return data.removeprefix(BOM)


@dataclass(frozen=True)
class Block:
    """Whole lines of a file."""

    data: bytes
    first_line: int  # 1-based number of its first line
    num_line_ends: int

    def lines(self) -> list[bytes]:
        """What stands before each \n; a \r stays."""
        lines = self.data.split(b"\n")
        return lines if lines[-1] else lines[:-1]

    @property
    def num_lines(self) -> int:
        return self.num_line_ends + (not self.data.endswith((b"\n", b"\r")))


@contextmanager
def reading(path: Path) -> Iterator[Any]:
    """The bytes of a file, decompressed as its first bytes say. Raises UserError if that fails."""
    if path.is_dir():
        raise UserError(f"{path} is a directory; name a trace file")
    try:
        with pa.OSFile(str(path), "rb") as file:
            magic = file.read(4)
            file.seek(0)
            kind = next((k for start, k in _COMPRESSIONS.items() if magic.startswith(start)), None)
            yield pa.CompressedInputStream(file, kind) if kind else file
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise UserError(
            f"{path} cannot be decompressed ({shown(str(error))}); get the file anew"
        ) from None


def read_head(path: Path) -> Head:
    """How the file or folder at `path` begins."""
    if path.is_dir():
        return Head(path, True, b"")
    with reading(path) as stream:
        data = stream.read(_HEAD_BYTES).removeprefix(BOM)
        # Of a JSON object on one line nothing is known before it ends.
        read = data.lstrip()
        if read.startswith(b"{"):
            while b"\n" not in read and read and len(data) <= MAX_LINE_BYTES:
                read = stream.read(_READ_BYTES)
                data += read
        return Head(path, False, data)


def trace_name(path: Path) -> str:
    """A file's name without its ending, also of `x.csv.gz`."""
    return Path(path.stem).stem if path.suffix in _COMPRESSED_SUFFIXES else path.stem


def header_columns(header_line: bytes) -> list[str]:
    """Column names in a header line."""
    text = header_line.decode("utf-8", errors="replace")
    return [name.strip(' \t\r\n"') for name in text.split(",")]


def num_line_ends(data: bytes) -> int:
    """How many line ends there are: \\n, \\r\\n or \\r."""
    num_ends = data.count(b"\n")
    if b"\r" in data:
        num_ends += data.count(b"\r") - data.count(b"\r\n")
    return num_ends
