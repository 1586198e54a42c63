"""Who waits for whom: calls of one session, forks and joins.

A format that says only that calls belong together gives session and order. A format that says
when calls ended also gives the think or tool time between a call and the one before it. A driver
may replay recorded arrivals (open loop) or let each call follow those it waits for (closed loop).
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from .arrays import Int64, read_only, times

if TYPE_CHECKING:
    from .trace import Trace

NONE = -1  # no session, no such call
UNKNOWN_THINK_NS = -1
COLUMNS = ("session", "call", "after_call", "think_ns", "join_call")
LEAST = (NONE, 0, NONE, UNKNOWN_THINK_NS, NONE)


@dataclass(frozen=True, eq=False)
class Sessions:
    """Columns of shape [n], int64. Calls are named by their number within their session.

    A call with an `after_call` comes `think_ns` after that call has finished, or, if calls are
    joined to it, after the last of all these. Calls that share an `after_call` are a fork: subagents,
    or a conversation that branches. A call whose `join_call` is j is waited for by call j too.
    A named call that is not in the trace (cut off, or filtered out) is waited for by nobody.
    """

    session: Int64  # number of the session, from 0; -1: a request on its own
    call: Int64  # >= 0, different for each call of a session, ascending with arrival
    after_call: Int64  # -1: it comes at its arrival
    think_ns: Int64  # >= 0; -1: not known, or it comes at its arrival
    join_call: Int64  # a later call, which waits for this one beside its own after_call; -1: none

    def __post_init__(self) -> None:
        shapes = set()
        for name in COLUMNS:
            object.__setattr__(self, name, read_only(getattr(self, name), np.int64))
            shapes.add(getattr(self, name).shape)
        assert len(shapes) == 1, f"columns differ in shape: {shapes}"
        for name, least in zip(COLUMNS, LEAST, strict=True):
            column = getattr(self, name)
            assert not len(column) or column.min() >= least, f"a {name} of {column.min()}"
        assert (self.after_call < self.call).all(), "a call waits for itself or a later one"
        assert ((self.join_call > self.call) | (self.join_call == NONE)).all(), (
            "a call joins itself or an earlier one"
        )

    def take(self, rows: Int64 | slice) -> "Sessions":
        """The columns of `rows`."""
        return Sessions(**{name: getattr(self, name)[rows] for name in COLUMNS})

    def scale_think(self, ratio: Fraction) -> "Sessions":
        """The same with `ratio` times the think times that are known."""
        known = self.think_ns != UNKNOWN_THINK_NS
        return replace(self, think_ns=np.where(known, times(self.think_ns, ratio), self.think_ns))


@dataclass(frozen=True, eq=False)
class Waits:
    """For each request of a trace, the rows it waits for and how long it waits after the last.

    Request i waits for `rows[offsets[i]:offsets[i + 1]]` (rows of the trace, all below i) to finish
    and comes `think_ns[i]` later; -1: the trace does not say. One that waits for nobody comes at
    its arrival.
    """

    offsets: Int64  # [n + 1]
    rows: Int64
    think_ns: Int64  # [n]


def waits(trace: "Trace") -> Waits:
    """Resolve the session columns of a trace. Without sessions nobody waits."""
    n = trace.num_requests
    if trace.chunks[0].sessions is None:
        return Waits(np.zeros(n + 1, np.int64), np.zeros(0, np.int64), np.full(n, UNKNOWN_THINK_NS))
    parts = [chunk.sessions for chunk in trace.chunks if chunk.sessions is not None]
    session, call, after_call, think_ns, join_call = (
        np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS
    )
    in_session = np.flatnonzero(session != NONE)
    names = zip(session[in_session].tolist(), call[in_session].tolist(), strict=True)
    row_of = dict(zip(names, in_session.tolist(), strict=True))
    assert len(row_of) == len(in_session), "two calls of a session have the same number"
    edges: list[tuple[int, int]] = []  # who waits, for whom
    for row in np.flatnonzero((session != NONE) & (after_call != NONE)).tolist():
        before = row_of.get((int(session[row]), int(after_call[row])))
        if before is not None:
            edges.append((row, before))
    for row in np.flatnonzero((session != NONE) & (join_call != NONE)).tolist():
        later = row_of.get((int(session[row]), int(join_call[row])))
        if later is not None:
            edges.append((later, row))
    assert all(before < row for row, before in edges), "a call waits for a later row"
    edges.sort()
    waiting, awaited = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    offsets = np.searchsorted(waiting, np.arange(n + 1)).astype(np.int64)
    return Waits(offsets, awaited, np.where(np.diff(offsets) > 0, think_ns, UNKNOWN_THINK_NS))
