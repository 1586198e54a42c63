"""From a path to a Trace and back."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from .abandoned import held, is_abandoned
from .errors import UserError
from .formats.checks import shown
from .formats.detect import format_of
from .formats.registry import FORMATS, WRITABLE_FORMATS, WritableFormat, load_format
from .formats.source import ReadOptions, Source, read_head, trace_name
from .trace import UNKNOWN_MAX_TOKENS, Trace, TraceChunk


def open_trace(
    path: str | Path,
    format: str | None = None,
    options: ReadOptions | None = None,
    most: int | None = None,
) -> Trace:
    """Read a trace. Without a `format` its header or first line decides; no value is guessed.

    With `most`, reading stops after so many requests. Raises UserError, one line that names the
    place, for anything wrong in what is read.
    """
    with scan_trace(path, format, options) as scan:
        chunks: list[TraceChunk] = []
        left = most
        for chunk in scan.chunks:
            chunks.append(chunk if left is None else chunk.head(min(left, chunk.num_requests)))
            if left is not None and (left := left - chunks[-1].num_requests) == 0:
                break
        return scan.trace(tuple(chunks))


@dataclass(frozen=True, eq=False)
class Scan:
    """A trace that is being read: its chunks once, one behind the other."""

    format: str
    source: Source
    chunks: Iterator[TraceChunk]

    def trace(self, chunks: tuple[TraceChunk, ...]) -> Trace:
        """A trace of `chunks` and of what the reader has said so far."""
        return Trace(
            trace_name(self.source.path),
            self.format,
            chunks,
            skipped=dict(self.source.skipped),
            unknown_keys=dict(self.source.unknown_keys),
            notes=tuple(self.source.notes),
        )


@contextmanager
def scan_trace(
    path: str | Path, format: str | None = None, options: ReadOptions | None = None
) -> Iterator[Scan]:
    """Read a trace that need not fit into memory. Raises UserError as `open_trace` does."""
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise UserError(f"format is {shown(format)}; it must be one of: {', '.join(FORMATS)}")
    try:
        if not path.exists():
            raise UserError(f"{path} does not exist; check the path")
        if not (path.is_file() or path.is_dir()):
            raise UserError(f"{path} is not a regular file; write the trace to a file first")
        head = read_head(path)
        if not (head.is_folder or head.first_line):
            raise UserError(f"{path}: the file is empty; a trace has at least one request")
        source = Source(head, options or ReadOptions())
        name = format_of(head, format, bool(source.options.columns))
        yield Scan(name, source, _not_empty(source, load_format(name).read(source)))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; check the file") from None


def _not_empty(source: Source, chunks: Iterator[TraceChunk]) -> Iterator[TraceChunk]:
    """The chunks. Raises UserError behind the last one if there was none."""
    is_empty = True
    for chunk in chunks:
        is_empty = False
        yield chunk
    if is_empty:
        left_out = "".join(f"; left out: {n:,} x {reason}" for reason, n in source.skipped.items())
        raise UserError(f"{source.path}: the trace is empty, there are no rows{left_out}")


def write_trace(
    trace: Trace, path: str | Path, format: str, force: bool = False
) -> tuple[str, ...]:
    """Write a trace, whole or not at all, and return what the format could not carry.

    Raises UserError if the format cannot be written, if the file exists and `force` is not given,
    or if the folder does not take it.
    """
    module = _writable(format)
    with whole_file(path, force=force) as file:
        module.write(trace, file)
    return tuple(_lost(trace, module))


@contextmanager
def whole_file(path: str | Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file to write, which is at `path` if the block ends without error, and else nowhere.

    What killed processes have left of the same file is removed first.

    Raises UserError if the file exists and `force` is not given, or if the folder does not take it.
    """
    path = Path(path)
    if os.path.lexists(path) and not (force and path.is_file()):
        hint = "choose another name" if path.is_dir() else "choose another name or give --force"
        raise UserError(f"{path} exists already; {hint}")
    # Beside the target, so that the rename stays inside one file system and replaces in one go.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        try:
            with suppress(OSError):  # no reason not to write
                _remove_unfinished(path)
            with unfinished.open("wb") as file, held(unfinished):
                yield file
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; check the folder") from None


def _remove_unfinished(path: Path) -> None:
    name = re.compile(rf"\.{re.escape(path.name)}\.([1-9][0-9]{{0,8}})\.unfinished")
    for other in path.parent.iterdir():
        match = name.fullmatch(other.name)
        if match and other.is_file() and is_abandoned(other, int(match[1])):
            other.unlink(missing_ok=True)


def _writable(format: str) -> WritableFormat:
    if format not in WRITABLE_FORMATS:
        raise UserError(
            f"format is {shown(format)}; formats that can be written: {', '.join(WRITABLE_FORMATS)}"
        )
    return cast(WritableFormat, load_format(format))


def _lost(trace: Trace, format: WritableFormat) -> list[str]:
    """What the trace has and the format cannot hold."""
    lost = [what for what in _extras(trace) if what not in format.CARRIES]
    content, grain = trace.chunks[0].content, format.CONTENT_TOKENS
    if content is not None and grain is None:
        lost.append("content")
    elif content is not None and content.block_tokens % cast(int, grain):
        lost.append(f"content inside blocks of {grain} tokens")
    return lost


def _extras(trace: Trace) -> list[str]:
    """What the trace has beyond arrivals, lengths and content."""
    extras = []
    if any((chunk.max_tokens != UNKNOWN_MAX_TOKENS).any() for chunk in trace.chunks):
        extras.append("max_tokens")
    if any((chunk.arrival_ns % 10**6).any() for chunk in trace.chunks):
        extras.append("nanoseconds")
    for name in ("sessions", "priority", "num_samples"):
        if getattr(trace.chunks[0], name) is not None:
            extras.append(name)
    return extras
