"""BurstGPT traces: `Timestamp`, `Request tokens`, `Response tokens`, and from v3 on `Session ID`, `Elapsed time`.

Source: github.com/HPMLL/BurstGPT (Wang et al., KDD 2025). Timestamps are seconds after midnight of the
first day, whole or with fractions. v3 inserts its two columns in the middle, so columns go by name.
`Session ID` is empty on API calls. `Elapsed time` is how long the whole response took: what lies between
its end and the session's next call is think time. A failed call has no response tokens; in the files
"with fails" some have no request tokens either. Both are left out and counted.
"""

from collections.abc import Iterator

import numpy as np

from ..arrays import Int64
from ..sessions import Sessions
from ..trace import UNKNOWN_MAX_TOKENS, TraceChunk
from .source import Head, Source
from .successors import Successors
from .table import Table, csv_tables
from .times import NumberClock, number_times
from .usable import usable_rows

SHAPE = "CSV with Timestamp, Request tokens, Response tokens"
_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
_SESSION, _ELAPSED = "Session ID", "Elapsed time"
_UNUSED = ("Model", "Total tokens", "Log Type")


def recognises(head: Head) -> bool:
    return head.columns >= set(_COLUMNS)


def read(source: Source) -> Iterator[TraceChunk]:
    clock, successors = NumberClock(_COLUMNS[0]), Successors()
    optional = tuple(name for name in (_SESSION, _ELAPSED) if name in source.head.columns)
    for table in csv_tables(source, _COLUMNS, optional, _UNUSED, counts=_COLUMNS[1:]):
        prompts = table.token_counts("Request tokens", least=0)
        outputs = table.token_counts("Response tokens", least=0)
        kept = usable_rows(source, prompts, outputs)
        if kept.any():
            rows = table.keep(kept)
            arrival_ns = clock.arrivals(rows)
            yield TraceChunk(
                arrival_ns=arrival_ns,
                num_prompt_tokens=prompts[kept],
                num_output_tokens=outputs[kept],
                max_tokens=np.full(rows.num_rows, UNKNOWN_MAX_TOKENS, dtype=np.int64),
                sessions=(
                    _sessions(rows, arrival_ns, successors) if _SESSION in rows.columns else None
                ),
            )


def _sessions(rows: Table, arrival_ns: Int64, successors: Successors) -> Sessions:
    took_ns = number_times(rows, _ELAPSED, "s") if _ELAPSED in rows.columns else None
    return successors.sessions(rows.columns[_SESSION].to_pylist(), arrival_ns, took_ns)
