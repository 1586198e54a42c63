"""Our own Parquet: the columns of `kvtwin-csv` as integers, and content ids.

`max_tokens` may be absent or null (the trace does not say). `content_ids`, a list of unsigned ids
for each request, may be absent; the tokens an id stands for are in the schema metadata.
"""

from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import UserError
from ..trace import MAX_SPAN_NS, UNKNOWN_MAX_TOKENS, ContentIds, Int64, Trace, TraceChunk
from .checks import MAX_TOKENS, fail_at, rebase, shown, time_problem, token_problem
from .table import shown_names

SHAPE = "Parquet with arrival_ns, num_prompt_tokens, num_output_tokens"
CARRIES = frozenset({"max_tokens", "content ids"})
_COLUMNS = ("arrival_ns", "num_prompt_tokens", "num_output_tokens")
_MAX_TOKENS = "max_tokens"
_CONTENT = "content_ids"
_BLOCK_TOKENS_KEY = b"kvtwin.content_block_tokens"


def recognises(first_line: bytes) -> bool:
    return first_line.startswith(b"PAR1")


def read(path: Path) -> Trace:
    table = _load(path)
    if table.num_rows == 0:
        raise UserError(f"{path}: the trace is empty, there are no rows")
    times_ns = _times(path, table)
    max_tokens = np.full(table.num_rows, UNKNOWN_MAX_TOKENS, dtype=np.int64)
    if _MAX_TOKENS in table.column_names:
        said = table[_MAX_TOKENS].is_valid().to_numpy()
        max_tokens[said] = _tokens(path, table, _MAX_TOKENS, nulls_are=1)[said]
    chunk = TraceChunk(
        arrival_ns=times_ns,
        num_prompt_tokens=_tokens(path, table, "num_prompt_tokens"),
        num_output_tokens=_tokens(path, table, "num_output_tokens"),
        max_tokens=max_tokens,
        content=_content(path, table) if _CONTENT in table.column_names else None,
    )
    return Trace(path.stem, "kvtwin-parquet", (chunk,))


def write(trace: Trace, file: BinaryIO) -> None:
    fields = [(name, pa.int64()) for name in (*_COLUMNS, _MAX_TOKENS)]
    metadata: dict[bytes, bytes] = {}
    first = trace.chunks[0].content
    if first is not None:
        fields.append((_CONTENT, pa.large_list(pa.uint64())))
        metadata[_BLOCK_TOKENS_KEY] = str(first.block_tokens).encode()
    schema = pa.schema(fields, metadata=metadata)
    with pq.ParquetWriter(file, schema) as writer:
        for chunk in trace.chunks:
            columns = [
                pa.array(chunk.arrival_ns),
                pa.array(chunk.num_prompt_tokens),
                pa.array(chunk.num_output_tokens),
                pa.array(chunk.max_tokens, mask=chunk.max_tokens == UNKNOWN_MAX_TOKENS),
            ]
            if chunk.content is not None:
                columns.append(
                    pa.LargeListArray.from_arrays(chunk.content.offsets, chunk.content.ids)
                )
            writer.write_table(pa.table(columns, schema=schema))


def _load(path: Path) -> Any:
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for name in _COLUMNS:
                if name not in names:
                    raise UserError(
                        f"{path}: column {name} is missing; columns seen: {shown_names(names)}"
                    )
            wanted = [n for n in (*_COLUMNS, _MAX_TOKENS, _CONTENT) if n in names]
            for name in wanted:
                if names.count(name) > 1:
                    raise UserError(f"{path}: column {name} appears twice; remove one of the two")
            return file.read(columns=wanted)
    except (pa.ArrowException, OSError, ValueError) as error:
        problem = shown(str(error).splitlines()[0] if str(error) else "unknown")
        raise UserError(
            f"{path}: cannot be read as Parquet ({problem}); write the file anew"
        ) from None


def _whole_numbers(path: Path, table: Any, column: str, nulls_are: int | None = None) -> Any:
    """A column as numpy integers of the width they have in the file, with nulls replaced."""
    values = table[column]
    if not pa.types.is_integer(values.type):
        raise UserError(
            f"{path}: column {column} has type {values.type}; it must have an integer type"
        )
    if nulls_are is not None:
        values = pc.fill_null(values, nulls_are)
    if values.null_count:
        _fail(path, int(pc.index(values.is_null(), True).as_py()), f"{column} is empty")
    return values.to_numpy()


def _tokens(path: Path, table: Any, column: str, nulls_are: int | None = None) -> Int64:
    values = _whole_numbers(path, table, column, nulls_are)
    bad = np.flatnonzero((values < 1) | (values > MAX_TOKENS))
    if len(bad):
        _fail(path, int(bad[0]), token_problem(column, str(values[bad[0]])))
    return np.asarray(values, dtype=np.int64)


def _times(path: Path, table: Any) -> Int64:
    values = _whole_numbers(path, table, "arrival_ns")
    bad = np.flatnonzero((values < 0) | (values > MAX_SPAN_NS))
    if len(bad):
        row = int(bad[0])
        _fail(path, row, time_problem("arrival_ns", str(values[row]), "whole nanoseconds"))
    return rebase(
        np.asarray(values, dtype=np.int64),
        "arrival_ns",
        lambda row: str(values[row]),
        lambda row: _place(path, row),
    )


def _content(path: Path, table: Any) -> ContentIds:
    block_tokens = (table.schema.metadata or {}).get(_BLOCK_TOKENS_KEY, b"")
    if not (block_tokens.isdigit() and 1 <= int(block_tokens[:9]) <= MAX_TOKENS):
        raise UserError(
            f"{path}: schema metadata {_BLOCK_TOKENS_KEY.decode()} is"
            f" {shown(block_tokens.decode(errors='replace'))}; {_CONTENT} needs a whole number"
            f" from 1 to {MAX_TOKENS:,} there"
        )
    lists = table[_CONTENT]
    is_list = pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type)
    if not (is_list and pa.types.is_unsigned_integer(lists.type.value_type)):
        raise UserError(
            f"{path}: column {_CONTENT} has type {lists.type}; it must have lists of unsigned ids"
        )
    ids = pc.list_flatten(lists)
    if lists.null_count or ids.null_count:
        raise UserError(f"{path}: column {_CONTENT} has empty values; give every request a list")
    lengths = pc.list_value_length(lists).to_numpy()
    return ContentIds(
        block_tokens=int(block_tokens),
        offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        ids=ids.to_numpy(),
    )


def _place(path: Path, row: int) -> str:
    return f"{path} row {row + 1}"


def _fail(path: Path, row: int, problem: str) -> NoReturn:
    fail_at(_place(path, row), problem)
