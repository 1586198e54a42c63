"""Which format an input is in."""

import re
from typing import NoReturn

from ..errors import UserError
from .checks import fail_at, shown
from .registry import FORMATS, load_format
from .source import MAX_LINE_BYTES, Head, header_columns
from .table import shown_names

_NAME = re.compile(r"\w{4,}")


def format_of(head: Head, format: str | None, has_columns: bool) -> str:
    """The name of the format: the one given, or the only one that recognises the input.

    `has_columns`: the user has named the columns, which takes the place of a format.

    Raises UserError if none does or several do, or if the one given cannot be.
    """
    if has_columns:
        if format not in (None, "columns"):
            raise UserError(f"--columns is given with format {format}; leave one of the two out")
        return "columns"
    is_parquet = head.data.startswith(b"PAR1")
    if format is not None:
        if is_parquet and format not in ("kvtwin-parquet", "columns"):
            raise UserError(f"{head.path} is a Parquet file; format {format} does not fit it")
        if format == "kvtwin-parquet" and not is_parquet:
            raise UserError(f"{head.path} is not a Parquet file; format {format} does not fit it")
        return format
    if not is_parquet and b"\0" in head.first_line:
        raise UserError(f"{head.path} is a binary file, not a trace; formats: {', '.join(FORMATS)}")
    fitting = [name for name in FORMATS if load_format(name).recognises(head)]
    if len(fitting) > 1:
        what = (
            " (delta: lengths count what is new in a turn)" if "mooncake-delta" in fitting else ""
        )
        raise UserError(
            f"{head.path} fits the formats {' and '.join(fitting)}; name one with --format{what}"
        )
    if not fitting:
        _fail(head)
    return fitting[0]


def _fail(head: Head) -> NoReturn:
    if head.is_folder:
        raise UserError(f"{head.path} is a directory without a known kind of trace; name a file")
    first_line = head.first_line
    if first_line.startswith(b"{"):
        if head.row is None:
            if len(first_line) >= MAX_LINE_BYTES:
                fail_at(
                    f"{head.path} line {head.first_line_number}",
                    f"the line has more bytes than the limit of {MAX_LINE_BYTES:,}",
                )
            fail_at(f"{head.path} line {head.first_line_number}", "not one complete JSON object")
        seen = f"its first line is the object {shown(first_line.decode(errors='replace'))}"
    else:
        seen = f"columns seen: {shown_names(header_columns(first_line))}"
    raise UserError(
        f"{head.path} is in no known format; {seen}{_closest(head)}; formats: {', '.join(FORMATS)}"
    )


def _closest(head: Head) -> str:
    """The format with most of the names that the file has, and what else it needs."""
    seen = head.columns if head.row is None else head.row.keys()
    names = {name: len(seen & set(_NAME.findall(load_format(name).SHAPE))) for name in FORMATS}
    best = max(names, key=names.__getitem__)
    return f"; closest is {best} ({load_format(best).SHAPE})" if names[best] else ""
