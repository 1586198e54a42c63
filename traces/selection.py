"""Parts of a trace, and batches spread over time. The same arguments give the same requests."""

from dataclasses import dataclass, replace

import numpy as np

from .arrays import Int64
from .errors import UserError
from .sessions import NONE
from .trace import Trace


@dataclass(frozen=True)
class Selection:
    """Which requests to keep: `skip`, then `window_s`, then `sample`, then `num_requests` apply."""

    skip: int = 0  # requests to leave out at the start
    window_s: tuple[float, float] | None = None  # seconds after the file's first arrival, half-open
    sample: float | None = (
        None  # share of sessions to keep, whole; requests on their own count as one
    )
    num_requests: int | None = None  # most requests to keep
    seed: int = 0  # of the sample

    def __post_init__(self) -> None:
        if self.skip < 0:
            raise UserError(f"skip is {self.skip}; it must be at least 0")
        if self.window_s is not None and not 0 <= self.window_s[0] < self.window_s[1]:
            start, end = self.window_s
            raise UserError(f"window is {start:g}:{end:g}; it must be two times in seconds, from 0")
        if self.sample is not None and not 0 < self.sample <= 1:
            raise UserError(f"sample is {self.sample}; it must be above 0 and at most 1")
        if self.seed < 0:
            raise UserError(f"seed is {self.seed}; it must be at least 0")
        if self.num_requests is not None and self.num_requests < 1:
            raise UserError(f"num_requests is {self.num_requests}; it must be at least 1")
        if self.seed < 0:
            raise UserError(f"seed is {self.seed}; it must be at least 0")

    @property
    def most_read(self) -> int | None:
        """Requests that must be read to know the selection; None: all."""
        if self.num_requests is None or self.window_s is not None or self.sample is not None:
            return None
        return self.skip + self.num_requests


def select(trace: Trace, selection: Selection) -> Trace:
    """The selected requests, the first of them at 0. Raises UserError if there are none."""
    if selection == Selection():
        return trace
    if selection == Selection(num_requests=selection.num_requests):
        return trace.head(selection.num_requests or trace.num_requests)
    is_kept = np.arange(trace.num_requests) >= selection.skip
    if selection.window_s is not None:
        # No trace is longer than 1e9 s; twice that still fits in int64.
        start_ns, end_ns = (round(min(second, 2e9) * 1e9) for second in selection.window_s)
        arrival_ns = np.concatenate([chunk.arrival_ns for chunk in trace.chunks])
        arrival_ns = arrival_ns - arrival_ns[0]
        is_kept &= (arrival_ns >= start_ns) & (arrival_ns < end_ns)
    if selection.sample is not None:
        unit = _units(trace)
        draws = np.random.default_rng(selection.seed).random(int(unit.max()) + 1)
        is_kept &= draws[unit] < selection.sample
    rows = np.flatnonzero(is_kept)[: selection.num_requests]
    if not len(rows):
        raise UserError(
            f"none of the {trace.num_requests:,} requests of {trace.name} is left; skip less, or"
            " take a wider window or a larger sample"
        )
    return trace.take(rows)


def spread_batches(trace: Trace) -> Trace:
    """Requests that share a stamp, spread evenly over the time until the next stamp.

    The last batch gets as much time as the one before it. Traces stamped every few seconds would
    otherwise send a burst that no client sent.
    """
    arrival_ns = np.concatenate([chunk.arrival_ns for chunk in trace.chunks])
    stamps, firsts, nums = np.unique(arrival_ns, return_index=True, return_counts=True)
    if len(stamps) == 1:
        return trace
    room_ns = np.diff(stamps)
    room_ns = np.append(room_ns, room_ns[-1])
    place = np.arange(len(arrival_ns)) - np.repeat(firsts, nums)
    # room x place may be beyond int64: whole part and rest of the share of each request apart.
    share_ns, rest_ns = np.divmod(room_ns, nums)
    spread = arrival_ns + place * np.repeat(share_ns, nums)
    spread += place * np.repeat(rest_ns, nums) // np.repeat(nums, nums)
    ends = np.cumsum([chunk.num_requests for chunk in trace.chunks])
    columns = np.split(spread, ends[:-1])
    return replace(
        trace,
        chunks=tuple(
            replace(chunk, arrival_ns=column)
            for chunk, column in zip(trace.chunks, columns, strict=True)
        ),
        notes=(*trace.notes, "requests that shared a stamp are spread over the time to the next"),
    )


def _units(trace: Trace) -> Int64:
    """A number for each request: the same for those of one session, another for any other."""
    n = trace.num_requests
    units = np.arange(n)
    if trace.chunks[0].sessions is not None:
        parts = [chunk.sessions.session for chunk in trace.chunks if chunk.sessions is not None]
        session = np.concatenate(parts)
        number = np.unique(session, return_inverse=True)[1]
        units = np.where(session == NONE, units, n + number)
        units = np.unique(units, return_inverse=True)[1]
    return units
