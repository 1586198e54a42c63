"""Sessions of formats that name the session of each row: a call follows the one before it."""

from collections.abc import Sequence

import numpy as np

from ..arrays import Int64
from ..sessions import NONE, UNKNOWN_THINK_NS, Sessions


class Successors:
    """Numbers sessions in order of appearance and their calls in order of rows, chunk by chunk."""

    def __init__(self) -> None:
        # Session: its number, its calls so far, when the last of them ended.
        self._known: dict[str, tuple[int, int, int]] = {}

    def sessions(
        self,
        names: Sequence[str],
        arrival_ns: Int64 | None = None,
        took_ns: Int64 | None = None,
    ) -> Sessions:
        """The columns of the next rows; an empty name is a request on its own.

        With arrivals and how long calls took, a call comes its think time after the one before it,
        and one that came while that was running waits for nobody.
        """
        n = len(names)
        session, call = np.full(n, NONE), np.zeros(n, dtype=np.int64)
        after_call, think_ns = np.full(n, NONE), np.full(n, UNKNOWN_THINK_NS)
        for row in [row for row, name in enumerate(names) if name]:
            number, num_calls, end_ns = self._known.get(names[row], (len(self._known), 0, 0))
            session[row], call[row] = number, num_calls
            if arrival_ns is None or took_ns is None:
                if num_calls:
                    after_call[row] = num_calls - 1
            else:
                arrival = int(arrival_ns[row])
                if num_calls and arrival >= end_ns:
                    after_call[row], think_ns[row] = num_calls - 1, arrival - end_ns
                end_ns = max(end_ns, arrival + int(took_ns[row]))
            self._known[names[row]] = (number, num_calls + 1, end_ns)
        return Sessions(session, call, after_call, think_ns, np.full(n, NONE))
