"""From a path to a Trace and back."""

import os
from pathlib import Path
from typing import cast

from .errors import UserError
from .formats.checks import shown
from .formats.registry import (
    FORMATS,
    WRITABLE_FORMATS,
    ReadableFormat,
    WritableFormat,
    load_format,
)
from .formats.table import BOM, header_columns, shown_names
from .trace import UNKNOWN_MAX_TOKENS, Trace

_MAX_FIRST_LINE_BYTES = 1 << 20


def open_trace(path: str | Path, format: str | None = None) -> Trace:
    """Read a trace file. Without a `format` the header or first line decides; no value is guessed.

    Raises UserError, one line that names the place, for anything wrong with the file.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise UserError(f"format is {shown(format)}; it must be one of: {', '.join(FORMATS)}")
    try:
        if path.is_dir():
            raise UserError(f"{path} is a directory; name a trace file")
        if not path.exists():
            raise UserError(f"{path} does not exist; check the path")
        if not path.is_file():
            raise UserError(f"{path} is not a regular file; write the trace to a file first")
        first_line = _first_line(path)
        if not first_line:
            raise UserError(f"{path}: the file is empty; a trace has at least one request")
        return _format_of(path, first_line, format).read(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; check the file") from None


def write_trace(
    trace: Trace, path: str | Path, format: str, force: bool = False
) -> tuple[str, ...]:
    """Write a trace, whole or not at all, and return what the format could not carry.

    Raises UserError if the format cannot be written, if the file exists and `force` is not given,
    or if the folder does not take it.
    """
    path = Path(path)
    module = _writable(format)
    if os.path.lexists(path) and not (force and path.is_file()):
        hint = "choose another name" if path.is_dir() else "choose another name or force it"
        raise UserError(f"{path} exists already; {hint}")
    # Beside the target, so that the rename stays inside one file system and replaces in one go.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        try:
            with unfinished.open("wb") as file:
                module.write(trace, file)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; check the folder") from None
    return tuple(what for what in _extras(trace) if what not in module.CARRIES)


def _first_line(path: Path) -> bytes:
    """The first line that is not blank, without a byte order mark; empty if there is none."""
    with path.open("rb") as file:
        line = file.readline(_MAX_FIRST_LINE_BYTES).removeprefix(BOM)
        while line and not line.strip():
            line = file.readline(_MAX_FIRST_LINE_BYTES)
    return line.strip().split(b"\r")[0]  # where lines end with \r, readline went on


def _format_of(path: Path, first_line: bytes, format: str | None) -> ReadableFormat:
    is_parquet = load_format("kvtwin-parquet").recognises(first_line)
    if format is not None:
        if is_parquet != (format == "kvtwin-parquet"):
            kind = "is" if is_parquet else "is not"
            raise UserError(f"{path} {kind} a Parquet file; format {format} does not fit it")
        return load_format(format)
    if not is_parquet and b"\0" in first_line:
        raise UserError(f"{path} is a binary file, not a trace; formats: {_shapes()}")
    fitting = [name for name in FORMATS if load_format(name).recognises(first_line)]
    if len(fitting) > 1:
        raise UserError(f"{path} fits the formats {' and '.join(fitting)}; name one with --format")
    if not fitting:
        raise UserError(f"{path} is in no known format; {_seen(first_line)}; formats: {_shapes()}")
    return load_format(fitting[0])


def _seen(first_line: bytes) -> str:
    if first_line.startswith(b"{"):
        return f"its first line is the object {shown(first_line.decode(errors='replace'))}"
    return f"columns seen: {shown_names(header_columns(first_line))}"


def _shapes() -> str:
    return "; ".join(f"{name} ({load_format(name).SHAPE})" for name in FORMATS)


def _writable(format: str) -> WritableFormat:
    if format not in WRITABLE_FORMATS:
        raise UserError(
            f"format is {shown(format)}; formats that can be written: {', '.join(WRITABLE_FORMATS)}"
        )
    return cast(WritableFormat, load_format(format))


def _extras(trace: Trace) -> list[str]:
    """What the trace has beyond arrivals and lengths."""
    extras = []
    if any((chunk.max_tokens != UNKNOWN_MAX_TOKENS).any() for chunk in trace.chunks):
        extras.append("max_tokens")
    if any(chunk.content is not None for chunk in trace.chunks):
        extras.append("content ids")
    return extras
