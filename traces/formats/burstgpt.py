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
from ..sessions import NONE, UNKNOWN_THINK_NS, Sessions
from ..trace import UNKNOWN_MAX_TOKENS, TraceChunk
from .source import Head, Source
from .table import Table, csv_tables
from .times import NumberClock, number_times

SHAPE = "CSV with Timestamp, Request tokens, Response tokens"
_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
_SESSION, _ELAPSED = "Session ID", "Elapsed time"
_UNUSED = ("Model", "Total tokens", "Log Type")


def recognises(head: Head) -> bool:
    return head.columns >= set(_COLUMNS)


def read(source: Source) -> Iterator[TraceChunk]:
    clock = NumberClock(_COLUMNS[0])
    sessions = _SessionColumns() if _SESSION in source.head.columns else None
    optional = (_SESSION, _ELAPSED) if sessions else ()
    known = (*_UNUSED, _SESSION, _ELAPSED)
    for table in csv_tables(source, _COLUMNS, optional, known, counts=_COLUMNS[1:]):
        prompts = table.token_counts("Request tokens", least=0)
        outputs = table.token_counts("Response tokens", least=0)
        failed, empty = outputs == 0, prompts == 0
        for reason, where in (
            ("failed call, no response tokens", failed),
            ("call without request tokens", empty & ~failed),
        ):
            if where.any():
                source.skipped[reason] += int(where.sum())
        kept = ~failed & ~empty
        if kept.any():
            rows = table.keep(kept)
            arrival_ns = clock.arrivals(rows)
            yield TraceChunk(
                arrival_ns=arrival_ns,
                num_prompt_tokens=prompts[kept],
                num_output_tokens=outputs[kept],
                max_tokens=np.full(rows.num_rows, UNKNOWN_MAX_TOKENS, dtype=np.int64),
                sessions=sessions.of(rows, arrival_ns) if sessions else None,
            )


class _SessionColumns:
    """Sessions of a file, chunk by chunk: each call follows the one before it, if that had ended."""

    def __init__(self) -> None:
        # Session: its number, its calls so far, when the last of them ended (-1: not known).
        self._known: dict[str, tuple[int, int, int]] = {}

    def of(self, table: Table, arrival_ns: Int64) -> Sessions:
        num_rows = table.num_rows
        session, call = np.full(num_rows, NONE), np.zeros(num_rows, dtype=np.int64)
        after_call, think_ns = np.full(num_rows, NONE), np.full(num_rows, UNKNOWN_THINK_NS)
        names = table.columns[_SESSION].to_pylist()
        took_ns = number_times(table, _ELAPSED, "s") if _ELAPSED in table.columns else None
        for row in [row for row, name in enumerate(names) if name]:
            number, num_calls, end_ns = self._known.get(names[row], (len(self._known), 0, 0))
            session[row], call[row] = number, num_calls
            arrival = int(arrival_ns[row])
            if num_calls and (took_ns is None or arrival >= end_ns):
                after_call[row] = num_calls - 1
                if took_ns is not None:
                    think_ns[row] = arrival - end_ns
            end_ns = arrival if took_ns is None else max(end_ns, arrival + int(took_ns[row]))
            self._known[names[row]] = (number, num_calls + 1, end_ns)
        return Sessions(session, call, after_call, think_ns, np.full(num_rows, NONE))
