"""Our own Parquet: the columns of `kvtwin-csv` as integers, and all else that a trace may have.

`max_tokens` may be absent or null (the trace does not say). What else may be absent: `priority`,
`num_samples`; `session`, `call`, `after_call`, `think_ns`, `join_call` (see `traces/sessions.py`);
`content`, a list of (stream, start, num_tokens) for each request (see `traces/content.py`), the grain
of which is in the schema metadata. Files of the first version have `content_ids` in place of it: a
list with one unsigned id for each run of so many prompt tokens, the last of which may be partial.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from ..content import Content
from ..errors import UserError
from ..sessions import COLUMNS as SESSION_COLUMNS
from ..trace import UNKNOWN_MAX_TOKENS, Trace, TraceChunk
from .checks import MAX_SAMPLES, Clock, shown
from .parquet_rows import (
    BLOCK_TOKENS_KEY,
    CONTENT,
    CONTENT_IDS,
    MAX_TOKENS_COLUMN,
    PIECE,
    CallNumbers,
    ParquetRows,
)
from .source import Head, Source
from .table import shown_names

SHAPE = "Parquet with arrival_ns, num_prompt_tokens, num_output_tokens"
CARRIES = frozenset({"nanoseconds", "max_tokens", "sessions", "priority", "num_samples"})
CONTENT_TOKENS = 1
_COLUMNS = ("arrival_ns", "num_prompt_tokens", "num_output_tokens")
_COUNTS = ("priority", "num_samples")
_OPTIONAL = (MAX_TOKENS_COLUMN, *_COUNTS, *SESSION_COLUMNS, CONTENT, CONTENT_IDS)
_KNOWN = (*_COLUMNS, *_OPTIONAL)


def recognises(head: Head) -> bool:
    return head.data.startswith(b"PAR1")


def read(source: Source) -> Iterator[TraceChunk]:
    clock, calls = Clock("arrival_ns"), CallNumbers()
    for table, first_row in _row_groups(source):
        rows = ParquetRows(source, table, first_row)
        prompts, outputs = rows.tokens("num_prompt_tokens"), rows.tokens("num_output_tokens")
        yield TraceChunk(
            arrival_ns=rows.arrivals(clock),
            num_prompt_tokens=prompts,
            num_output_tokens=outputs,
            max_tokens=rows.max_tokens(),
            content=rows.content(prompts, outputs),
            sessions=rows.sessions(calls),
            priority=rows.optional("priority"),
            num_samples=rows.optional("num_samples", 1, MAX_SAMPLES),
        )


def write(trace: Trace, file: BinaryIO) -> None:
    first = trace.chunks[0]
    fields = [(name, pa.int64()) for name in (*_COLUMNS, MAX_TOKENS_COLUMN)]
    fields += [(name, pa.int64()) for name in _COUNTS if getattr(first, name) is not None]
    metadata: dict[bytes, bytes] = {}
    if first.sessions is not None:
        fields += [(name, pa.int64()) for name in SESSION_COLUMNS]
    if first.content is not None:
        fields.append((CONTENT, pa.large_list(PIECE)))
        metadata[BLOCK_TOKENS_KEY] = str(first.content.block_tokens).encode()
    schema = pa.schema(fields, metadata=metadata)
    with pq.ParquetWriter(file, schema) as writer:
        for chunk in trace.chunks:
            columns = [
                pa.array(chunk.arrival_ns),
                pa.array(chunk.num_prompt_tokens),
                pa.array(chunk.num_output_tokens),
                pa.array(chunk.max_tokens, mask=chunk.max_tokens == UNKNOWN_MAX_TOKENS),
            ]
            columns += [
                pa.array(column) for name in _COUNTS if (column := getattr(chunk, name)) is not None
            ]
            if chunk.sessions is not None:
                columns += [pa.array(getattr(chunk.sessions, name)) for name in SESSION_COLUMNS]
            if chunk.content is not None:
                columns.append(_pieces(chunk.content))
            writer.write_table(pa.table(columns, schema=schema))


def _pieces(content: Content) -> Any:
    columns = [pa.array(c) for c in (content.streams, content.starts, content.num_tokens)]
    pieces = pa.StructArray.from_arrays(columns, fields=list(PIECE))
    return pa.LargeListArray.from_arrays(content.offsets, pieces)


def _row_groups(source: Source) -> Iterator[tuple[Any, int]]:
    """The known columns of each row group that has rows, and the number of its first row."""
    path, first_row = source.path, 0
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for name in _COLUMNS:
                if name not in names:
                    raise UserError(
                        f"{path}: column {name} is missing; columns seen: {shown_names(names)}"
                    )
            for name in _KNOWN:
                if names.count(name) > 1:
                    raise UserError(f"{path}: column {name} appears twice; remove one of the two")
            unknown = set(names) - set(_KNOWN)
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=[n for n in _KNOWN if n in names])
                if table.num_rows:
                    source.unknown_keys.update(dict.fromkeys(unknown, table.num_rows))
                    yield table, first_row
                    first_row += table.num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        problem = shown(str(error).splitlines()[0] if str(error) else "unknown")
        raise UserError(
            f"{path}: cannot be read as Parquet ({problem}); write the file anew"
        ) from None
