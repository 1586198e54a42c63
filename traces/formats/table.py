"""CSV files as columns of text, with the line number of every row.

A row is one physical line: quotes may stand around a value, but a comma or a line break inside
quotes is not supported, and no format here has any. So line numbers are always right.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ..errors import UserError
from ..trace import Int64
from .checks import MAX_TOKENS, fail_at, shown, token_problem

BOM = b"\xef\xbb\xbf"
_MAX_LINE_BYTES = 1 << 20
_PADDING = ' \t\r\n"'
_HEADER = re.compile(rb"([\r\n]*)([^\r\n]*)(?:\r\n|\r|\n)?")


def header_columns(header_line: bytes) -> list[str]:
    """Column names in a header line."""
    text = header_line.decode("utf-8", errors="replace")
    return [name.strip(_PADDING) for name in text.split(",")]


def to_int64(texts: Any) -> Int64:
    """Text that was checked to be digits, as numbers."""
    return np.asarray(pc.cast(texts, pa.int64()).to_numpy(), dtype=np.int64)


def first_false(mask: Any) -> int | None:
    """Row of the first false in an arrow boolean array."""
    row = pc.index(mask, False).as_py()
    return None if row < 0 else int(row)


@dataclass(frozen=True)
class Table:
    """A CSV file with at least one row. Columns are arrow string arrays of shape [num_rows]."""

    path: Path
    body: bytes  # what follows the header line
    first_line: int  # 1-based number of the first line of the body
    columns: dict[str, Any]

    @cached_property
    def _lines_of_rows(self) -> list[int]:
        # Blank lines are no rows, so the line of a row is found by walking. Only errors do.
        lines = enumerate(self.body.splitlines(), self.first_line)
        return [number for number, line in lines if line]

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def skipped(self) -> dict[str, int]:
        """Rows left out: lines with nothing in them, before or after the header."""
        num_lines = self.first_line - 1 + _num_lines(self.body)
        num_blank = num_lines - 1 - self.num_rows
        return {"blank line": num_blank} if num_blank else {}

    def place(self, row: int) -> str:
        """Where a row is, for messages."""
        return f"{self.path} line {self._lines_of_rows[row]}"

    def text(self, column: str, row: int) -> str:
        return str(self.columns[column][row])

    def token_counts(self, column: str, unknown: int | None = None) -> Int64:
        """A column of token counts. `unknown`, where given, is what an empty value stands for.

        Raises UserError for anything but a whole number from 1 to MAX_TOKENS.
        """
        texts = self.columns[column]
        good = pc.match_substring_regex(texts, r"^0*[1-9][0-9]{0,7}$")
        if unknown is not None:
            is_empty = pc.equal(texts, "")
            good = pc.or_(good, is_empty)
            texts = pc.if_else(is_empty, str(unknown), texts)
        bad = first_false(good)
        # Rows behind the first bad one need no second look.
        counts = to_int64(texts if bad is None else texts[:bad])
        over = np.flatnonzero(counts > MAX_TOKENS)
        if len(over):
            bad = int(over[0])
        if bad is not None:
            fail_at(self.place(bad), token_problem(column, self.text(column, bad)))
        return counts


@dataclass(frozen=True)
class CsvFile:
    """A CSV file of which only the header has been looked at."""

    path: Path
    header: list[str]
    header_line: int  # 1-based
    body: bytes

    def read(self, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> Table:
        """The named columns; others are ignored, optional ones may be absent.

        Raises UserError for missing or repeated columns, no rows, and lines that do not fit.
        """
        place = f"{self.path} line {self.header_line}"
        seen = shown_names(self.header)
        for name in required:
            if name not in self.header:
                raise UserError(
                    f"{place}: column {name} is missing; columns seen: {seen};"
                    " rename the columns or choose another format"
                )
        wanted = [name for name in (*required, *optional) if name in self.header]
        for name in wanted:
            if self.header.count(name) > 1:
                raise UserError(f"{place}: column {name} appears twice; remove one of the two")
        if not self.body.strip(b"\r\n"):
            raise UserError(f"{self.path}: the trace is empty, there are no rows below the header")
        position = {name: str(self.header.index(name)) for name in wanted}
        try:
            raw = pyarrow.csv.read_csv(
                pa.BufferReader(self.body),
                read_options=pyarrow.csv.ReadOptions(
                    column_names=[str(i) for i in range(len(self.header))],
                    block_size=_MAX_LINE_BYTES,
                ),
                parse_options=pyarrow.csv.ParseOptions(quote_char=False),
                convert_options=pyarrow.csv.ConvertOptions(
                    column_types={number: pa.string() for number in position.values()},
                    include_columns=list(position.values()),
                ),
            )
        except pa.ArrowInvalid as error:
            raise self._bad_line(error) from None
        columns = {
            name: pc.utf8_trim(raw.column(number), characters=_PADDING)
            for name, number in position.items()
        }
        return Table(self.path, self.body, self.header_line + 1, columns)

    def _bad_line(self, error: pa.ArrowInvalid) -> UserError:
        """The error for the first line that arrow could not split into columns of text."""
        for number, line in enumerate(self.body.splitlines(), self.header_line + 1):
            num_columns = line.count(b",") + 1
            if len(line) > _MAX_LINE_BYTES:
                problem = f"the line has {len(line):,} bytes; the limit is {_MAX_LINE_BYTES:,}"
            elif line and num_columns != len(self.header):
                problem = f"{num_columns} columns where the header has {len(self.header)}"
            elif not _is_utf8(line):
                problem = "the line is not UTF-8 text"
            else:
                continue
            return UserError(f"{self.path} line {number}: {problem}; fix or remove the row")
        return UserError(f"{self.path}: cannot be read as CSV: {shown(str(error))}")


def load_csv(path: Path) -> CsvFile:
    """Read a file and split off its header. A UTF-8 byte order mark is accepted."""
    data = path.read_bytes()
    match = _HEADER.match(data, len(BOM) if data.startswith(BOM) else 0)
    assert match is not None, "the pattern matches the empty text"
    blank, header = match.groups()
    return CsvFile(
        path=path,
        header=header_columns(header),
        header_line=_num_lines(blank) + 1,
        body=data[match.end() :],
    )


def write_rows(columns: list[Any], file: BinaryIO) -> None:
    """Append rows to a CSV file: arrow arrays or numpy columns of equal length, no header."""
    rows = pa.table(columns, names=[str(i) for i in range(len(columns))])
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
    pyarrow.csv.write_csv(rows, file, options)


def shown_names(names: list[str]) -> str:
    """Column names as messages quote them."""
    text = ", ".join(shown(name) for name in names[:12])
    return text if len(names) <= 12 else f"{text}, ... ({len(names)} in all)"


def _num_lines(data: bytes) -> int:
    num_ends = data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")
    return num_ends + (not data.endswith((b"\n", b"\r")) and len(data) > 0)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
