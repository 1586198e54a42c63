"""Any flat CSV, JSONL or Parquet file whose columns the user names.

`arrival=NAME:UNIT`, where UNIT is s, ms, us, ns or date, because no magnitude tells a unit; without it
all requests arrive at once. `prompt=NAME` and `output=NAME` in tokens. Perhaps `max_tokens=NAME` and
`session=NAME`; calls of a session follow one another, after a time that is not known. Rows without
prompt or output tokens, which logs have for calls that failed, are left out and counted.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import UserError
from ..trace import UNKNOWN_MAX_TOKENS, TraceChunk
from .checks import json_text, shown
from .json_rows import in_chunks, json_rows
from .source import Head, Source
from .successors import Successors
from .table import Table, csv_tables, shown_names
from .times import UNITS, DateClock, NumberClock
from .usable import usable_rows

SHAPE = "any flat CSV, JSONL or Parquet, with --columns"
_FIELDS = ("arrival", "prompt", "output", "session", "max_tokens")
_USAGE = "write it like arrival=ts:ms,prompt=in,output=out"


def recognises(head: Head) -> bool:
    """Nothing by itself: the user has to name the columns."""
    return False


def parse_columns(text: str) -> Mapping[str, str]:
    """`FIELD=NAME,...` as a mapping. Raises UserError for what is no such list."""
    columns: dict[str, str] = {}
    for part in text.split(","):
        field, separator, name = (piece.strip() for piece in part.partition("="))
        if not separator or not name or field not in _FIELDS or field in columns:
            raise UserError(
                f"--columns has {shown(part)}; {_USAGE}; fields, each once: {', '.join(_FIELDS)}"
            )
        columns[field] = name
    for field in ("prompt", "output"):
        if field not in columns:
            raise UserError(f"--columns has no {field}; {_USAGE}")
    if "arrival" in columns:
        _unit(columns["arrival"])
    return columns


def read(source: Source) -> Iterator[TraceChunk]:
    names = dict(source.options.columns)
    if not names:
        raise UserError(f"{source.path}: format columns needs --columns; {_USAGE}")
    clock: NumberClock | DateClock | None = None
    if "arrival" in names:
        names["arrival"], unit = _unit(names["arrival"])
        clock = (
            DateClock(names["arrival"]) if unit == "date" else NumberClock(names["arrival"], unit)
        )
    else:
        source.notes.append("no arrival column was named: all requests arrive at once")
    successors = Successors()
    for table in _tables(source, sorted(set(names.values()))):
        prompts, outputs = (table.token_counts(names[f], least=0) for f in ("prompt", "output"))
        kept = usable_rows(source, prompts, outputs)
        if not kept.any():
            continue
        rows = table.keep(kept)
        yield TraceChunk(
            arrival_ns=clock.arrivals(rows) if clock else np.zeros(rows.num_rows, np.int64),
            num_prompt_tokens=prompts[kept],
            num_output_tokens=outputs[kept],
            max_tokens=(
                rows.token_counts(names["max_tokens"], unknown=UNKNOWN_MAX_TOKENS)
                if "max_tokens" in names
                else np.full(rows.num_rows, UNKNOWN_MAX_TOKENS, dtype=np.int64)
            ),
            sessions=(
                successors.sessions(rows.columns[names["session"]].to_pylist())
                if "session" in names
                else None
            ),
        )


def _unit(column: str) -> tuple[str, str]:
    name, separator, unit = column.rpartition(":")
    if not separator or not name or unit not in (*UNITS, "date"):
        raise UserError(
            f"--columns has arrival={shown(column)}; name its unit too, like arrival=ts:ms;"
            f" units: {', '.join((*UNITS, 'date'))}"
        )
    return name, unit


def _tables(source: Source, names: list[str]) -> Iterator[Table]:
    if source.head.data.startswith(b"PAR1"):
        return _parquet_tables(source, names)
    if source.head.first_line.startswith(b"{"):
        return _json_tables(source, names)
    return csv_tables(source, names)


def _json_tables(source: Source, names: list[str]) -> Iterator[Table]:
    for rows in in_chunks(json_rows(source, names)):
        lines = [line for line, _ in rows]
        columns = {
            name: pa.array([_text(row[name]) for _, row in rows], pa.string()) for name in names
        }
        yield Table.of_text(columns, partial(_line_place, source, lines))


def _line_place(source: Source, lines: list[int], row: int) -> str:
    return source.place(lines[row])


def _row_place(source: Source, first_row: int, row: int) -> str:
    return f"{source.path} row {first_row + row + 1}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json_text(value)


def _parquet_tables(source: Source, names: list[str]) -> Iterator[Table]:
    first_row = 0
    try:
        with pq.ParquetFile(source.path) as file:
            seen = file.schema_arrow.names
            for name in names:
                if seen.count(name) != 1:
                    raise UserError(
                        f"{source.path}: column {name} is there {seen.count(name)} times;"
                        f" columns seen: {shown_names(seen)}"
                    )
            for batch in file.iter_batches(columns=names):
                ignored = set(seen) - set(names)
                source.unknown_keys.update(dict.fromkeys(ignored, batch.num_rows))
                columns = {
                    name: pc.fill_null(pc.cast(batch.column(name), pa.string()), "")
                    for name in names
                }
                yield Table.of_text(columns, partial(_row_place, source, first_row))
                first_row += batch.num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{source.path}: cannot be read as Parquet ({shown(str(error))})") from None
