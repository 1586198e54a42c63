"""What came in: requests as columns, in order of arrival.

Times are nanoseconds after the first arrival, lengths are tokens.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from .arrays import Int64, read_only, times
from .content import Content
from .errors import UserError
from .sessions import Sessions

UNKNOWN_MAX_TOKENS = -1
# About 31 years. Sums of a few such times still fit in int64.
MAX_SPAN_NS = 10**18

_COLUMNS = ("arrival_ns", "num_prompt_tokens", "num_output_tokens", "max_tokens")
_OPTIONAL_COLUMNS = ("priority", "num_samples")


@dataclass(frozen=True, eq=False)
class TraceChunk:
    """Consecutive requests of a trace. Columns are int64 of shape [n], n >= 1, and read-only.

    Optional parts are None where the format has nothing of the kind.
    """

    arrival_ns: Int64  # nondecreasing, >= 0
    num_prompt_tokens: Int64  # >= 1
    num_output_tokens: Int64  # >= 1
    max_tokens: Int64  # what the client asked for at most; -1 where the trace does not say
    content: Content | None = None
    sessions: Sessions | None = None
    priority: Int64 | None = None  # lower is served first, as vLLM's
    num_samples: Int64 | None = None  # >= 1: outputs asked of one prompt

    def __post_init__(self) -> None:
        present = [name for name in _OPTIONAL_COLUMNS if getattr(self, name) is not None]
        for name in (*_COLUMNS, *present):
            object.__setattr__(self, name, read_only(getattr(self, name), np.int64))
        shapes = {name: getattr(self, name).shape for name in (*_COLUMNS, *present)}
        assert len(set(shapes.values())) == 1, f"columns differ in length: {shapes}"
        assert self.arrival_ns.ndim == 1, f"columns have shape {self.arrival_ns.shape}"
        assert self.num_requests >= 1, "a chunk has at least one request"
        assert self.arrival_ns[0] >= 0, f"arrival_ns starts at {self.arrival_ns[0]}"
        assert (np.diff(self.arrival_ns) >= 0).all(), "arrival_ns decreases"
        assert self.num_prompt_tokens.min() >= 1, f"a prompt of {self.num_prompt_tokens.min()}"
        assert self.num_output_tokens.min() >= 1, f"an output of {self.num_output_tokens.min()}"
        assert ((self.max_tokens >= 1) | (self.max_tokens == UNKNOWN_MAX_TOKENS)).all(), (
            f"max_tokens of {self.max_tokens.min()}"
        )
        assert self.num_samples is None or self.num_samples.min() >= 1, "fewer than 1 sample"
        if self.content is not None:
            assert len(self.content.offsets) == self.num_requests + 1, (
                f"{len(self.content.offsets)} content offsets for {self.num_requests} requests"
            )
            room = self.num_prompt_tokens + self.num_output_tokens
            assert (self.content.num_known_tokens() <= room).all(), (
                "a request has more content than tokens"
            )
        assert self.sessions is None or len(self.sessions.session) == self.num_requests, (
            f"{self.num_requests} requests but sessions for another number"
        )

    @property
    def num_requests(self) -> int:
        return len(self.arrival_ns)

    def head(self, n: int) -> "TraceChunk":
        """The first `n` requests, 1 <= n <= num_requests."""
        return self._with(slice(n), lambda content: content.head(n))

    def take(self, rows: Int64) -> "TraceChunk":
        """The requests `rows`, at least one, ascending."""
        return self._with(rows, lambda content: content.take(rows))

    def _with(self, rows: Int64 | slice, content_of: Callable[[Content], Content]) -> "TraceChunk":
        return TraceChunk(
            arrival_ns=self.arrival_ns[rows],
            num_prompt_tokens=self.num_prompt_tokens[rows],
            num_output_tokens=self.num_output_tokens[rows],
            max_tokens=self.max_tokens[rows],
            priority=None if self.priority is None else self.priority[rows],
            num_samples=None if self.num_samples is None else self.num_samples[rows],
            content=None if self.content is None else content_of(self.content),
            sessions=None if self.sessions is None else self.sessions.take(rows),
        )


@dataclass(frozen=True, eq=False)
class Trace:
    """A request trace: column chunks in order of arrival, and what was done to them.

    Readers and generators re-base arrivals, so that the first one is at 0. Optional parts are in
    all chunks or in none, and streams of content and sessions mean the same in all of them.
    """

    name: str  # file stem or workload name, never a path
    format: str  # the format it was read as, or "synthetic"
    chunks: tuple[TraceChunk, ...]
    clipped_rows: tuple[int, ...] = ()  # requests that a generator shortened, ascending
    skipped: Mapping[str, int] = field(default_factory=dict)  # rows left out, by reason
    unknown_keys: Mapping[str, int] = field(default_factory=dict)  # keys or columns not read: rows
    notes: tuple[str, ...] = ()  # what the reader had to assume, a sentence each

    def __post_init__(self) -> None:
        assert self.chunks, f"trace {self.name} has no chunks"
        assert all(0 <= row < self.num_requests for row in self.clipped_rows[-1:]), (
            f"row {self.clipped_rows[-1:]} of {self.num_requests} requests is clipped"
        )
        for before, after in zip(self.chunks, self.chunks[1:], strict=False):
            assert before.arrival_ns[-1] <= after.arrival_ns[0], (
                f"a chunk starts at {after.arrival_ns[0]} ns, before {before.arrival_ns[-1]} ns"
            )
        block_tokens = {chunk.content and chunk.content.block_tokens for chunk in self.chunks}
        assert len(block_tokens) == 1, f"chunks differ in content block tokens: {block_tokens}"
        for name in ("sessions", *_OPTIONAL_COLUMNS):
            present = {getattr(chunk, name) is not None for chunk in self.chunks}
            assert len(present) == 1, f"{name} is in some chunks only"

    @property
    def num_requests(self) -> int:
        return sum(chunk.num_requests for chunk in self.chunks)

    @property
    def num_clipped(self) -> int:
        """Requests that a generator shortened."""
        return len(self.clipped_rows)

    @property
    def saturated(self) -> bool:
        """True if all requests arrive at one instant: there is no arrival rate."""
        return bool(self.chunks[0].arrival_ns[0] == self.chunks[-1].arrival_ns[-1])

    def head(self, n: int) -> "Trace":
        """The first `n` requests, or all of them where there are fewer.

        Raises UserError if n < 1.
        """
        if n < 1:
            raise UserError(f"num_requests is {n}; it must be at least 1")
        kept: list[TraceChunk] = []
        clipped_rows = tuple(row for row in self.clipped_rows if row < n)
        for chunk in self.chunks:
            if n <= 0:
                break
            kept.append(chunk.head(min(n, chunk.num_requests)))
            n -= chunk.num_requests
        return replace(self, chunks=tuple(kept), clipped_rows=clipped_rows)

    def take(self, rows: Int64) -> "Trace":
        """The requests `rows` (at least one, ascending), with the first of them at 0."""
        chunks, first_row, first_ns = [], 0, None
        for chunk in self.chunks:
            begin, end = np.searchsorted(rows, (first_row, first_row + chunk.num_requests))
            if begin < end:
                kept = chunk.take(rows[begin:end] - first_row)
                first_ns = kept.arrival_ns[0] if first_ns is None else first_ns
                chunks.append(replace(kept, arrival_ns=kept.arrival_ns - first_ns))
            first_row += chunk.num_requests
        clipped = np.searchsorted(rows, np.intersect1d(rows, self.clipped_rows))
        return replace(self, chunks=tuple(chunks), clipped_rows=tuple(clipped.tolist()))

    def scale_rate(self, factor: float) -> "Trace":
        """The same requests at `factor` times the rate.

        Each distance to the first arrival is divided by `factor` exactly and rounded once, half up.
        Think times stay as they are. Raises UserError unless `factor` is finite, positive and keeps
        the trace below 10^18 ns.
        """
        if not (math.isfinite(factor) and factor > 0):
            raise UserError(f"rate scale is {factor}; it must be a finite number above 0")
        return self._stretched(1 / Fraction(factor), f"rate scale is {factor}", "larger")

    def scale_time(self, factor: float) -> "Trace":
        """The same requests with `factor` times the time between them, think times included.

        Rounded and refused as by `scale_rate`.
        """
        if not (math.isfinite(factor) and factor > 0):
            raise UserError(f"time scale is {factor}; it must be a finite number above 0")
        ratio = Fraction(factor)
        for chunk in self.chunks:
            if (
                chunk.sessions is not None
                and int(chunk.sessions.think_ns.max()) * ratio > MAX_SPAN_NS
            ):
                raise UserError(
                    f"time scale is {factor}; it stretches a think time of {self.name} beyond the"
                    f" limit of {MAX_SPAN_NS // 10**9:,} s; use a smaller one"
                )
        stretched = self._stretched(ratio, f"time scale is {factor}", "smaller")
        return replace(
            stretched,
            chunks=tuple(
                chunk
                if chunk.sessions is None
                else replace(chunk, sessions=chunk.sessions.scale_think(ratio))
                for chunk in stretched.chunks
            ),
        )

    def at_once(self) -> "Trace":
        """The same requests in the same order, all at 0, and a note of it. Think times stay as they are."""
        span_s = int(self.chunks[-1].arrival_ns[-1] - self.chunks[0].arrival_ns[0]) / 1e9
        said = f"all arrivals are at once (--rate inf); in the trace they span {span_s:,.3f} s"
        return replace(
            self,
            chunks=tuple(replace(c, arrival_ns=np.zeros_like(c.arrival_ns)) for c in self.chunks),
            notes=(*self.notes, said),
        )

    def _stretched(self, ratio: Fraction, what: str, better: str) -> "Trace":
        first = int(self.chunks[0].arrival_ns[0])
        last = int(self.chunks[-1].arrival_ns[-1])
        if (last - first) * ratio > MAX_SPAN_NS:
            raise UserError(
                f"{what}; it stretches {self.name} beyond the limit of"
                f" {MAX_SPAN_NS // 10**9:,} s; use a {better} one"
            )
        return replace(
            self,
            chunks=tuple(
                replace(chunk, arrival_ns=first + times(chunk.arrival_ns - first, ratio))
                for chunk in self.chunks
            ),
        )
