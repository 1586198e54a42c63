"""Who waited for whom, when only starts and ends of calls are known."""

from collections.abc import Sequence
from heapq import heappop, heappush


def waits_of_intervals(times_ns: Sequence[tuple[int, int]]) -> list[tuple[list[int], int]]:
    """For calls with (start, end), in order of start: whom each waits for, and for how long after.

    A call waits for the calls that had ended when it started, but not for those which one of these
    had already waited for. The one that ended last comes first; -1 where a call waits for nobody.
    """
    running: list[tuple[int, int]] = []  # (end, call)
    ended: list[tuple[int, int]] = []  # in order of end
    last_start_ns = -1  # of those that have ended
    waits: list[tuple[list[int], int]] = []
    for call, (start_ns, end_ns) in enumerate(times_ns):
        while running and running[0][0] <= start_ns:
            ended.append(heappop(running))
            last_start_ns = max(last_start_ns, times_ns[ended[-1][1]][0])
        awaited: list[int] = []
        for other_end_ns, other in reversed(ended):
            # Whoever started at or after its end has waited for it, and those before it too.
            if other_end_ns <= last_start_ns and awaited:
                break
            awaited.append(other)
        waits.append((awaited, start_ns - ended[-1][0] if awaited else -1))
        heappush(running, (end_ns, call))
    return waits
