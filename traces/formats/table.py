"""CSV files as columns of text or numbers, with the line number of every row.

A row is one physical line: quotes may stand around a value, but a comma or a line break inside
quotes is not supported, and no format here has any. So line numbers are always right.
"""

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ..arrays import Int64
from ..errors import UserError
from .checks import MAX_TOKENS, Place, fail_at, shown, token_problem
from .source import Block, Source, header_columns, num_line_ends

_MAX_LINE_BYTES = 1 << 20
_PADDING = ' \t\r\n"'
_TEXT = re.compile(rb"[^\r\n]")
_HEADER = re.compile(rb"[\r\n]*([^\r\n]*)(?:\r\n|\r|\n)?")


def to_int64(texts: Any) -> Int64:
    """Text that was checked to be digits, as numbers."""
    return np.asarray(pc.cast(texts, pa.int64()).to_numpy(), dtype=np.int64)


def first_false(mask: Any) -> int | None:
    """Row of the first false in an arrow boolean array."""
    row = pc.index(mask, False).as_py()
    return None if row < 0 else int(row)


def csv_tables(
    source: Source,
    required: Collection[str],
    optional: Collection[str] = (),
    known: Collection[str] = (),
    counts: Collection[str] = (),
) -> Iterator["Table"]:
    """The named columns, a block of the file at a time; optional ones may be absent.

    Columns in `counts` are read as numbers where all their values in the block are plain ones.
    Other columns are ignored, and counted unless they are `known`. Raises UserError for missing or
    repeated columns and lines that do not fit.
    """
    header: list[str] = []
    for block in source.blocks(_MAX_LINE_BYTES):
        num_lines = block.num_lines
        if not header:
            header, block = _split_header(block)
            if header:
                place = source.place(block.first_line - 1)
                wanted = _wanted(place, header, required, optional)
                num_lines -= 1
        table = None
        if header and _TEXT.search(block.data):
            table = _parse(source, header, block, wanted, counts)
            ignored = set(header) - {*wanted, *known, ""}
            source.unknown_keys.update(dict.fromkeys(ignored, table.num_rows))
            num_lines -= table.num_rows
        if num_lines:
            source.skipped["blank line"] += num_lines
        if table is not None:
            yield table


@dataclass(frozen=True)
class Table:
    """Rows of a file, at least one. Columns are arrow arrays of text or numbers, [num_rows]."""

    columns: dict[str, Any]
    place: Place  # where a row is, for messages
    as_text: "Callable[[], Table] | None" = None  # the same with all columns as text

    @classmethod
    def of_text(cls, columns: dict[str, Any], place: Place) -> "Table":
        """Rows of which all columns are arrow arrays of text."""
        return cls({name: pa.chunked_array([c]) for name, c in columns.items()}, place)

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.columns.values())))

    def keep(self, is_kept: npt.NDArray[np.bool_]) -> "Table":
        """Some of its rows, at least one."""
        rows, mask, as_text = np.flatnonzero(is_kept), pa.array(is_kept), self.as_text
        return Table(
            {name: column.filter(mask) for name, column in self.columns.items()},
            lambda row: self.place(int(rows[row])),
            (lambda: as_text().keep(is_kept)) if as_text else None,
        )

    def text(self, column: str, row: int) -> str:
        return str(self.columns[column][row])

    def token_counts(self, column: str, unknown: int | None = None, least: int = 1) -> Int64:
        """A column of token counts. `unknown`, where given, is what an empty value stands for.

        Raises UserError for anything but a whole number from `least` to MAX_TOKENS.
        """
        values = self.columns[column]
        if not pa.types.is_string(values.type):
            extremes = pc.min_max(values)
            if (
                not values.null_count
                and extremes["min"].as_py() >= least
                and extremes["max"].as_py() <= MAX_TOKENS
            ):
                return np.asarray(values.to_numpy(), dtype=np.int64)
            assert self.as_text is not None, f"{column} has numbers"
            return self.as_text().token_counts(column, unknown, least)
        texts = values
        good = pc.match_substring_regex(texts, r"^[0-9]{1,18}$")
        if unknown is not None:
            is_empty = pc.equal(texts, "")
            good = pc.or_(good, is_empty)
            texts = pc.if_else(is_empty, str(unknown), texts)
        bad = first_false(good)
        # Rows behind the first bad one need no second look.
        counts = to_int64(texts if bad is None else texts[:bad])
        wrong = np.flatnonzero(((counts < least) & (counts != unknown)) | (counts > MAX_TOKENS))
        if len(wrong):
            bad = int(wrong[0])
        if bad is not None:
            fail_at(self.place(bad), token_problem(column, self.text(column, bad), least))
        return counts


def _split_header(block: Block) -> tuple[list[str], Block]:
    """The column names of a file that begins with this block, and the lines below them."""
    data = block.data
    match = _HEADER.match(data)
    assert match is not None, "the pattern matches the empty text"
    header = match.group(1)
    if not header:
        return [], block
    num_above = num_line_ends(data[: match.end()])
    below = Block(
        data[match.end() :], block.first_line + num_above, block.num_line_ends - num_above
    )
    return header_columns(header), below


def _wanted(
    place: str, header: list[str], required: Collection[str], optional: Collection[str]
) -> list[str]:
    for name in required:
        if name not in header:
            raise UserError(
                f"{place}: column {name} is missing; columns seen: {shown_names(header)};"
                " rename the columns or choose another format"
            )
    wanted = [name for name in (*required, *optional) if name in header]
    for name in wanted:
        if header.count(name) > 1:
            raise UserError(f"{place}: column {name} appears twice; remove one of the two")
    return wanted


def _parse(
    source: Source, header: list[str], block: Block, wanted: list[str], counts: Collection[str]
) -> Table:
    position = {name: str(header.index(name)) for name in wanted}
    as_text = {number: pa.string() for number in position.values()}
    numbers = {position[name]: pa.int64() for name in wanted if name in counts}
    # Arrow takes 0x10 for a number; what has an x is looked at as text.
    if numbers and b"x" not in block.data and b"X" not in block.data:
        try:
            return _table(source, header, block, position, as_text | numbers)
        except pa.ArrowInvalid:
            pass  # what is wrong, if anything, is found in the text
    try:
        return _table(source, header, block, position, as_text)
    except pa.ArrowInvalid as error:
        raise _bad_line(source, header, block, error) from None


def _table(
    source: Source,
    header: list[str],
    block: Block,
    position: dict[str, str],
    types: dict[str, Any],
) -> Table:
    raw = pyarrow.csv.read_csv(
        pa.BufferReader(block.data),
        read_options=pyarrow.csv.ReadOptions(
            column_names=[str(i) for i in range(len(header))], block_size=_MAX_LINE_BYTES
        ),
        parse_options=pyarrow.csv.ParseOptions(quote_char=False),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=types, include_columns=list(position.values()), null_values=[""]
        ),
    )
    columns = {
        name: raw.column(number)
        if pa.types.is_integer(raw.column(number).type)
        else pc.utf8_trim(raw.column(number), characters=_PADDING)
        for name, number in position.items()
    }
    return Table(
        columns,
        _CsvPlaces(source, block, raw.num_rows),
        lambda: _parse(source, header, block, list(position), ()),
    )


class _CsvPlaces:
    """The lines of rows. Blank lines are no rows, so a row is found by walking; only errors do."""

    def __init__(self, source: Source, block: Block, num_rows: int) -> None:
        self._source, self._block, self._num_rows = source, block, num_rows

    @cached_property
    def _lines(self) -> list[int]:
        lines = enumerate(self._block.data.splitlines(), self._block.first_line)
        return [number for number, line in lines if line]

    def __call__(self, row: int) -> str:
        if row == self._num_rows - 1:  # asked of every block, because the next one may need it
            data = self._block.data
            num_behind = num_line_ends(data[len(data.rstrip(b"\r\n")) :])
            num_before = self._block.num_line_ends - num_behind
            return self._source.place(self._block.first_line + num_before)
        return self._source.place(self._lines[row])


def _bad_line(source: Source, header: list[str], block: Block, error: pa.ArrowInvalid) -> UserError:
    """The error for the first line that arrow could not split into columns of text."""
    for number, line in enumerate(block.data.splitlines(), block.first_line):
        num_columns = line.count(b",") + 1
        if len(line) > _MAX_LINE_BYTES:
            problem = f"the line has {len(line):,} bytes; the limit is {_MAX_LINE_BYTES:,}"
        elif line and num_columns != len(header):
            problem = f"{num_columns} columns where the header has {len(header)}"
        elif not _is_utf8(line):
            problem = "the line is not UTF-8 text"
        else:
            continue
        return UserError(f"{source.place(number)}: {problem}; fix or remove the row")
    return UserError(f"{source.path}: cannot be read as CSV: {shown(str(error))}")


def write_rows(columns: list[Any], file: BinaryIO) -> None:
    """Append rows to a CSV file: arrow arrays or numpy columns of equal length, no header."""
    rows = pa.table(columns, names=[str(i) for i in range(len(columns))])
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
    pyarrow.csv.write_csv(rows, file, options)


def shown_names(names: list[str]) -> str:
    """Column names as messages quote them."""
    text = ", ".join(shown(name) for name in names[:12])
    return text if len(names) <= 12 else f"{text}, ... ({len(names)} in all)"


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
