"""The rows of a row group of kvtwin's own Parquet, checked column by column."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import Int64
from ..content import Content, content_of_block_ids
from ..errors import UserError
from ..sessions import COLUMNS as SESSION_COLUMNS
from ..sessions import LEAST, NONE, Sessions
from ..trace import MAX_SPAN_NS, UNKNOWN_MAX_TOKENS
from .checks import MAX_TOKENS, Clock, fail_at, shown, time_problem, token_problem
from .source import Source

MAX_TOKENS_COLUMN = "max_tokens"
CONTENT = "content"
CONTENT_IDS = "content_ids"  # of the first version of the format
BLOCK_TOKENS_KEY = b"kvtwin.content_block_tokens"
PIECE = pa.struct([("stream", pa.int64()), ("start", pa.int64()), ("num_tokens", pa.int32())])
_ELEMENT = {CONTENT: PIECE, CONTENT_IDS: pa.uint64()}
_MOST = {"think_ns": MAX_SPAN_NS}


class ParquetRows:
    """At least one row, the first of which is number `first_row` of its file."""

    def __init__(self, source: Source, table: Any, first_row: int) -> None:
        self._path, self._table, self._first_row = source.path, table, first_row

    def place(self, row: int) -> str:
        """Where a row is, for messages."""
        return f"{self._path} row {self._first_row + row + 1}"

    def tokens(self, column: str, nulls_are: int | None = None) -> Int64:
        """A column of token counts."""
        values = self._whole_numbers(column, nulls_are)
        bad = np.flatnonzero((values < 1) | (values > MAX_TOKENS))
        if len(bad):
            fail_at(self.place(int(bad[0])), token_problem(column, str(values[bad[0]])))
        return np.asarray(values, dtype=np.int64)

    def max_tokens(self) -> Int64:
        """What clients asked for, with nulls and the lack of a column as unknown."""
        kept = np.full(self._table.num_rows, UNKNOWN_MAX_TOKENS, dtype=np.int64)
        if MAX_TOKENS_COLUMN in self._table.column_names:
            said = self._table[MAX_TOKENS_COLUMN].is_valid().to_numpy()
            kept[said] = self.tokens(MAX_TOKENS_COLUMN, nulls_are=1)[said]
        return kept

    def optional(self, column: str, least: int = -(2**63), most: int = 2**63 - 1) -> Int64 | None:
        """A column of whole numbers from `least` to `most`, or None if there is no such column."""
        if column not in self._table.column_names:
            return None
        values = self._whole_numbers(column)
        self._check(values >= least, column, values, f"it must be at least {least}")
        self._check(values <= most, column, values, f"it must be at most {most:,}")
        return np.asarray(values, dtype=np.int64)

    def arrivals(self, clock: Clock) -> Int64:
        """Arrivals after the first one of the file."""
        values = self._whole_numbers("arrival_ns")
        bad = np.flatnonzero((values < 0) | (values > MAX_SPAN_NS))
        if len(bad):
            text = str(values[bad[0]])
            fail_at(self.place(int(bad[0])), time_problem("arrival_ns", text, "whole nanoseconds"))
        times_ns = np.asarray(values, dtype=np.int64)
        return clock.arrivals(times_ns, lambda row: str(values[row]), self.place)

    def sessions(self, calls: "CallNumbers") -> Sessions | None:
        """The session columns, all or none. `calls` knows the row groups before this one."""
        present = [name for name in SESSION_COLUMNS if name in self._table.column_names]
        if not present:
            return None
        columns: dict[str, Int64] = {}
        for name, least in zip(SESSION_COLUMNS, LEAST, strict=True):
            column = self.optional(name, least, _MOST.get(name, 2**63 - 1))
            if column is None:
                raise UserError(f"{self._path}: column {name} is missing beside {present[0]}")
            columns[name] = column
        call, after, join = columns["call"], columns["after_call"], columns["join_call"]
        self._check(after < call, "after_call", after, "it must be an earlier call")
        self._check((join > call) | (join == -1), "join_call", join, "it must be a later call")
        upwards = calls.rise(columns["session"], call)
        self._check(upwards, "call", call, "it must be above those of earlier rows of its session")
        return Sessions(**columns)

    def content(self, num_prompt_tokens: Int64, num_output_tokens: Int64) -> Content | None:
        """The content column, or that of the first version of the format."""
        column = next((c for c in (CONTENT, CONTENT_IDS) if c in self._table.column_names), None)
        if column is None:
            return None
        block_tokens = self._block_tokens(column)
        lists = self._table[column].combine_chunks()
        is_list = pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type)
        if not (is_list and lists.type.value_type == _ELEMENT[column]):
            raise UserError(
                f"{self._path}: column {column} has type {lists.type};"
                f" it must have lists of {_ELEMENT[column]}"
            )
        values = pc.list_flatten(lists)
        parts = values.flatten() if column == CONTENT else [values]
        if lists.null_count or any(part.null_count for part in (values, *parts)):
            raise UserError(
                f"{self._path}: column {column} has empty values; give every request a list"
            )
        num_values = pc.list_value_length(lists).to_numpy().astype(np.int64)
        offsets = np.concatenate(([0], np.cumsum(num_values)))
        if column == CONTENT_IDS:
            num_blocks = -(-num_prompt_tokens // block_tokens)
            wanted = f"the prompt has another number of blocks of {block_tokens} tokens"
            self._check(num_values == num_blocks, "number of content_ids", num_values, wanted)
            ids = parts[0].to_numpy()
            return content_of_block_ids(block_tokens, ids, offsets, num_prompt_tokens)
        streams, starts, num_tokens = (part.to_numpy() for part in parts)
        least = np.minimum(np.minimum(streams, starts), num_tokens.astype(np.int64) - 1)
        ends = np.concatenate(([0], np.cumsum(num_tokens, dtype=np.int64)))
        owners = np.repeat(np.arange(len(num_values)), num_values)
        is_good = np.ones(len(num_values), dtype=bool)
        is_good[owners[least < 0]] = False
        problem = "streams and starts are from 0 and pieces have at least one token"
        self._check(is_good, "number of pieces of content", num_values, problem)
        known = np.diff(ends[offsets])
        self._check(
            known <= num_prompt_tokens + num_output_tokens,
            "content",
            known,
            "the request has fewer tokens",
        )
        return Content(block_tokens, offsets, streams, starts, num_tokens)

    def _block_tokens(self, column: str) -> int:
        text = (self._table.schema.metadata or {}).get(BLOCK_TOKENS_KEY, b"")
        if not (text.isdigit() and 1 <= int(text[:9]) <= MAX_TOKENS):
            raise UserError(
                f"{self._path}: schema metadata {BLOCK_TOKENS_KEY.decode()} is"
                f" {shown(text.decode(errors='replace'))}; {column} needs a whole number from 1"
                f" to {MAX_TOKENS:,} there"
            )
        return int(text)

    def _whole_numbers(self, column: str, nulls_are: int | None = None) -> Any:
        """A column as numpy integers of the width they have in the file, with nulls replaced."""
        values = self._table[column]
        if not pa.types.is_integer(values.type):
            raise UserError(
                f"{self._path}: column {column} has type {values.type};"
                " it must have an integer type"
            )
        if nulls_are is not None:
            values = pc.fill_null(values, nulls_are)
        if values.null_count:
            fail_at(self.place(int(pc.index(values.is_null(), True).as_py())), f"{column} is empty")
        return values.to_numpy()

    def _check(self, is_good: Any, what: str, values: Any, problem: str) -> None:
        bad = np.flatnonzero(~is_good)
        if len(bad):
            fail_at(self.place(int(bad[0])), f"{what} is {values[bad[0]]}; {problem}")


class CallNumbers:
    """The last call of each session so far, row group by row group."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}

    def rise(self, session: Int64, call: Int64) -> npt.NDArray[np.bool_]:
        """Which of the next rows have a number above all before it in their session, shape [n]."""
        order = np.argsort(session, kind="stable")
        names, numbers = session[order], call[order]
        firsts = np.flatnonzero(np.concatenate(([True], names[1:] != names[:-1])))
        before = np.concatenate(([NONE], numbers[:-1]))
        before[firsts] = [self._last.get(name, NONE) for name in names[firsts].tolist()]
        rises = np.ones(len(session), dtype=np.bool_)
        rises[order] = (numbers > before) | (names == NONE)
        lasts = np.append(firsts[1:], len(names)) - 1
        self._last.update(zip(names[firsts].tolist(), numbers[lasts].tolist(), strict=True))
        return rises
