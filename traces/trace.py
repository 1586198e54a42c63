"""What came in: requests as columns, in order of arrival.

Times are nanoseconds after the first arrival, lengths are tokens.
"""

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from .errors import UserError

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
Integer = TypeVar("Integer", np.int64, np.uint64)

UNKNOWN_MAX_TOKENS = -1
# About 31 years. Sums of a few such times still fit in int64.
MAX_SPAN_NS = 10**18


def _read_only(column: npt.ArrayLike, dtype: type[Integer]) -> npt.NDArray[Integer]:
    array = np.asarray(column)
    assert array.size == 0 or array.dtype.kind in "iu", f"a column of {array.dtype}, not integers"
    kept = array.astype(dtype, copy=False)
    assert kept.dtype == array.dtype or (kept == array).all(), f"a value outside {kept.dtype}"
    view = kept.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, eq=False)
class ContentIds:
    """What the prompts hold, as ids of runs of `block_tokens` tokens (the last run may be partial).

    The ids of request i are `ids[offsets[i]:offsets[i + 1]]`. Equal ids mean equal tokens in the
    run and in everything before it.
    """

    block_tokens: int
    offsets: Int64  # [n + 1], from 0
    ids: UInt64  # [offsets[-1]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", _read_only(self.offsets, np.int64))
        object.__setattr__(self, "ids", _read_only(self.ids, np.uint64))
        assert self.block_tokens >= 1, f"block_tokens is {self.block_tokens}"
        assert self.offsets.ndim == 1, f"offsets has shape {self.offsets.shape}"
        assert len(self.offsets) >= 1, "offsets is empty; it starts with 0"
        assert self.offsets[0] == 0, f"offsets starts with {self.offsets[0]}"
        assert (np.diff(self.offsets) >= 0).all(), "offsets decreases"
        assert self.ids.shape == (self.offsets[-1],), (
            f"offsets ends with {self.offsets[-1]} but there are {self.ids.shape} ids"
        )

    def head(self, n: int) -> "ContentIds":
        """The ids of the first `n` requests."""
        return replace(self, offsets=self.offsets[: n + 1], ids=self.ids[: self.offsets[n]])


@dataclass(frozen=True, eq=False)
class TraceChunk:
    """Consecutive requests of a trace. Columns are int64 of shape [n], n >= 1, and read-only."""

    arrival_ns: Int64  # nondecreasing, >= 0
    num_prompt_tokens: Int64  # >= 1
    num_output_tokens: Int64  # >= 1
    max_tokens: Int64  # what the client asked for at most; -1 where the trace does not say
    content: ContentIds | None = None

    def __post_init__(self) -> None:
        columns = ("arrival_ns", "num_prompt_tokens", "num_output_tokens", "max_tokens")
        for name in columns:
            object.__setattr__(self, name, _read_only(getattr(self, name), np.int64))
        shapes = {name: getattr(self, name).shape for name in columns}
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
        if self.content is not None:
            assert len(self.content.offsets) == self.num_requests + 1, (
                f"{len(self.content.offsets)} content offsets for {self.num_requests} requests"
            )

    @property
    def num_requests(self) -> int:
        return len(self.arrival_ns)

    def head(self, n: int) -> "TraceChunk":
        """The first `n` requests, 1 <= n <= num_requests."""
        return TraceChunk(
            arrival_ns=self.arrival_ns[:n],
            num_prompt_tokens=self.num_prompt_tokens[:n],
            num_output_tokens=self.num_output_tokens[:n],
            max_tokens=self.max_tokens[:n],
            content=None if self.content is None else self.content.head(n),
        )


@dataclass(frozen=True, eq=False)
class Trace:
    """A request trace: column chunks in order of arrival, and what was done to them.

    Readers and generators re-base arrivals, so that the first one is at 0.
    """

    name: str  # file stem or workload name, never a path
    format: str  # the format it was read as, or "synthetic"
    chunks: tuple[TraceChunk, ...]
    clipped_rows: tuple[int, ...] = ()  # requests that a generator shortened, ascending
    skipped: dict[str, int] = field(default_factory=dict)  # rows left out, by reason

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

    def scale_rate(self, factor: float) -> "Trace":
        """The same requests at `factor` times the rate.

        Each distance to the first arrival is divided by `factor` exactly and rounded once, half up.
        Raises UserError unless `factor` is finite, positive and keeps the trace below 10^18 ns.
        """
        if not (math.isfinite(factor) and factor > 0):
            raise UserError(f"rate scale is {factor}; it must be a finite number above 0")
        divisor, multiplier = Fraction(factor).as_integer_ratio()
        first = int(self.chunks[0].arrival_ns[0])
        last = int(self.chunks[-1].arrival_ns[-1])
        if (last - first) * multiplier > MAX_SPAN_NS * divisor:
            raise UserError(
                f"rate scale is {factor}; it stretches {self.name} beyond the limit of"
                f" {MAX_SPAN_NS // 10**9:,} s; use a larger one"
            )
        half = divisor // 2
        return replace(
            self,
            chunks=tuple(
                replace(
                    chunk,
                    arrival_ns=np.array(
                        [
                            first + ((arrival - first) * multiplier + half) // divisor
                            for arrival in chunk.arrival_ns.tolist()
                        ],
                        dtype=np.int64,
                    ),
                )
                for chunk in self.chunks
            ),
        )
