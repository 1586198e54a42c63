"""Numbers that describe a trace, collected chunk by chunk, so that it need not fit into memory."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .arrays import Int64
from .files import scan_trace
from .formats.source import ReadOptions
from .hits import PrefixHits, prefix_hits
from .lengths import LengthCounter, LengthSummary
from .sessions import NONE, UNKNOWN_THINK_NS, Sessions
from .trace import Trace, TraceChunk

# Nobody came for so long. A choice: well above the gaps of steady traffic in the public traces.
IDLE_GAP_S = 10


@dataclass(frozen=True)
class SessionSummary:
    """Sessions of a trace. Requests on their own are none."""

    num_sessions: int
    num_calls: int  # requests that belong to a session
    mean_calls: float
    max_calls: int
    num_forks: int  # calls after which more than one call comes
    num_joins: int  # calls that wait for calls beside the one before them
    num_think_times: int  # calls of which the time since the one before ended is known
    mean_think_s: float | None


@dataclass(frozen=True)
class TraceSummary:
    """What `describe` measures.

    `rate` is in requests per second: inter-arrival gaps over the span. `interarrival_cv` is the
    standard deviation of the gaps over their mean (1 for a Poisson process); `burstiness` the shape
    of Gamma gaps with this CV, 1 / CV^2. `dispersion_1s` is variance over mean of the arrivals per
    second (1 for a Poisson process). They are None where all requests arrive at one instant. Idle
    gaps are those of at least IDLE_GAP_S.
    """

    name: str
    format: str
    num_requests: int
    skipped: Mapping[str, int]
    unknown_keys: Mapping[str, int]
    notes: tuple[str, ...]
    saturated: bool
    span_s: float
    rate: float | None
    interarrival_cv: float | None
    burstiness: float | None
    dispersion_1s: float | None
    longest_gap_s: float
    num_idle_gaps: int
    idle_s: float
    num_distinct_arrivals: int
    prompt: LengthSummary
    output: LengthSummary
    num_with_max_tokens: int
    num_priorities: int | None  # different ones
    mean_samples: float | None  # outputs asked of a prompt
    sessions: SessionSummary | None
    content_block_tokens: int | None
    hits: tuple[PrefixHits, ...]


def describe(trace: Trace, block_tokens: int | None = None) -> TraceSummary:
    """Measure a trace; hits at the block size of its content, and at `block_tokens` if given."""
    measured = Measurement()
    for chunk in trace.chunks:
        measured.add(chunk)
    return measured.summary(trace, prefix_hits(trace, block_tokens))


def describe_file(
    path: str | Path,
    format: str | None = None,
    options: ReadOptions | None = None,
    block_tokens: int | None = None,
) -> TraceSummary:
    """`describe` of a file, which is kept in memory only if it has content. Raises as `open_trace`."""
    measured = Measurement()
    kept: list[TraceChunk] = []
    with scan_trace(path, format, options) as scan:
        for chunk in scan.chunks:
            measured.add(chunk)
            if not kept or chunk.content is not None:
                kept.append(chunk)
        trace = scan.trace(tuple(kept))
    return measured.summary(trace, prefix_hits(trace, block_tokens))


class Measurement:
    """Collects the chunks of a trace, in order."""

    def __init__(self) -> None:
        self._prompt, self._output = LengthCounter(), LengthCounter()
        self._gaps = _Gaps()
        self._num_with_max_tokens = 0
        self._sessions: list[Sessions] = []
        self._priorities: set[int] = set()
        self._num_samples = 0

    def add(self, chunk: TraceChunk) -> None:
        """The next chunk."""
        self._prompt.add(chunk.num_prompt_tokens)
        self._output.add(chunk.num_output_tokens)
        self._gaps.add(chunk.arrival_ns)
        self._num_with_max_tokens += int(np.count_nonzero(chunk.max_tokens >= 1))
        if chunk.priority is not None:
            self._priorities.update(np.unique(chunk.priority).tolist())
        if chunk.num_samples is not None:
            self._num_samples += int(chunk.num_samples.sum())
        if chunk.sessions is not None:
            self._sessions.append(chunk.sessions)

    def summary(self, trace: Trace, hits: Iterable[PrefixHits] = ()) -> TraceSummary:
        """What was collected. Of `trace`, only what is not in its chunks is used, and its content's grain."""
        gaps, content = self._gaps, trace.chunks[0].content
        return TraceSummary(
            name=trace.name,
            format=trace.format,
            num_requests=self._prompt.num_values,
            skipped=dict(trace.skipped),
            unknown_keys=dict(trace.unknown_keys),
            notes=trace.notes,
            saturated=not gaps.span_ns,
            span_s=gaps.span_ns / 1e9,
            rate=gaps.num_gaps / (gaps.span_ns / 1e9) if gaps.span_ns else None,
            interarrival_cv=gaps.cv,
            burstiness=None if not gaps.cv else 1 / gaps.cv**2,
            dispersion_1s=gaps.dispersion_1s,
            longest_gap_s=gaps.longest_ns / 1e9,
            num_idle_gaps=gaps.num_idle,
            idle_s=gaps.idle_ns / 1e9,
            num_distinct_arrivals=gaps.num_distinct,
            prompt=self._prompt.summary(),
            output=self._output.summary(),
            num_with_max_tokens=self._num_with_max_tokens,
            num_priorities=len(self._priorities) or None,
            mean_samples=self._num_samples / self._prompt.num_values or None,
            sessions=_session_summary(self._sessions),
            content_block_tokens=None if content is None else content.block_tokens,
            hits=tuple(hits),
        )


class _Gaps:
    """Times between arrivals, and arrivals per second."""

    def __init__(self) -> None:
        self.num_gaps = self.span_ns = self.longest_ns = self.num_idle = self.idle_ns = 0
        self.num_distinct = 0
        self._first_ns = self._last_ns = -1
        # Sum of squares about the mean, merged by Chan et al.'s rule: gaps of 1e18 ns do not overflow it.
        self._mean_ns = self._squares = 0.0
        self._second = -1  # the last second with arrivals, how many so far, and of those before:
        self._in_second = 0
        self._second_squares = 0

    def add(self, arrival_ns: Int64) -> None:
        if self._first_ns < 0:
            self._first_ns = self._last_ns = int(arrival_ns[0])
            self.num_distinct = 1
            gaps = np.diff(arrival_ns)
        else:
            gaps = np.diff(arrival_ns, prepend=self._last_ns)
        self._last_ns = int(arrival_ns[-1])
        self.span_ns = self._last_ns - self._first_ns
        self._add_seconds((arrival_ns - self._first_ns) // 10**9)
        if not len(gaps):
            return
        mean, num = float(gaps.mean()), len(gaps)
        between, total = mean - self._mean_ns, self.num_gaps + num
        self._squares += (
            float(((gaps - mean) ** 2).sum()) + between**2 * self.num_gaps * num / total
        )
        self._mean_ns += between * num / total
        self.num_gaps = total
        self.longest_ns = max(self.longest_ns, int(gaps.max()))
        idle = gaps[gaps >= IDLE_GAP_S * 10**9]
        self.num_idle, self.idle_ns = self.num_idle + len(idle), self.idle_ns + sum(idle.tolist())
        self.num_distinct += int(np.count_nonzero(gaps))

    @property
    def cv(self) -> float | None:
        if not self.span_ns:
            return None
        return math.sqrt(self._squares / self.num_gaps) / self._mean_ns

    @property
    def dispersion_1s(self) -> float | None:
        if not self.span_ns:
            return None
        num_seconds = self.span_ns // 10**9 + 1
        mean = (self.num_gaps + 1) / num_seconds
        mean_square = (self._second_squares + self._in_second**2) / num_seconds
        return (mean_square - mean**2) / mean

    def _add_seconds(self, seconds: Int64) -> None:
        starts = np.flatnonzero(np.diff(seconds, prepend=-1))
        nums = np.diff(starts, append=len(seconds))
        if seconds[0] == self._second:
            nums[0] += self._in_second
        else:
            self._second_squares += self._in_second**2
        self._second_squares += int((nums[:-1] ** 2).sum())
        self._second, self._in_second = int(seconds[-1]), int(nums[-1])


def _session_summary(parts: list[Sessions]) -> SessionSummary | None:
    if not parts:
        return None
    session, after, think_ns, join = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("session", "after_call", "think_ns", "join_call")
    )
    num_calls = np.unique(session[session != NONE], return_counts=True)[1]
    known = think_ns[think_ns != UNKNOWN_THINK_NS]
    return SessionSummary(
        num_sessions=len(num_calls),
        num_calls=int(num_calls.sum()),
        mean_calls=float(num_calls.mean()) if len(num_calls) else 0.0,
        max_calls=int(num_calls.max(initial=0)),
        num_forks=_num_pairs(session, after, least=2),
        num_joins=_num_pairs(session, join, least=1),
        num_think_times=len(known),
        mean_think_s=float(known.mean()) / 1e9 if len(known) else None,
    )


def _num_pairs(session: Int64, call: Int64, least: int) -> int:
    """How many calls are named at least `least` times."""
    named = (session != NONE) & (call != NONE)
    pairs = np.stack([session[named], call[named]])
    return int(np.count_nonzero(np.unique(pairs, axis=1, return_counts=True)[1] >= least))
