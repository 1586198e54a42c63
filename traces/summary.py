"""Numbers that describe a trace."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .arrays import Int64
from .trace import Trace


@dataclass(frozen=True)
class LengthSummary:
    """Tokens per request; percentiles are numpy's (linear interpolation)."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int


@dataclass(frozen=True)
class TraceSummary:
    """What `describe` measures.

    `rate` is in requests per second: inter-arrival gaps over the span. `interarrival_cv` is the
    standard deviation of the gaps over their mean (1 for a Poisson process). Both are None where
    all requests arrive at one instant.
    """

    name: str
    format: str
    num_requests: int
    skipped: Mapping[str, int]
    saturated: bool
    span_s: float
    rate: float | None
    interarrival_cv: float | None
    num_distinct_arrivals: int
    prompt: LengthSummary
    output: LengthSummary
    num_with_max_tokens: int
    content_block_tokens: int | None


def describe(trace: Trace) -> TraceSummary:
    """Measure a trace."""
    arrival_ns = np.concatenate([chunk.arrival_ns for chunk in trace.chunks])
    gaps_ns = np.diff(arrival_ns)
    span_s = int(arrival_ns[-1] - arrival_ns[0]) / 1e9
    content = trace.chunks[0].content
    return TraceSummary(
        name=trace.name,
        format=trace.format,
        num_requests=trace.num_requests,
        skipped=dict(trace.skipped),
        saturated=trace.saturated,
        span_s=span_s,
        rate=None if trace.saturated else len(gaps_ns) / span_s,
        interarrival_cv=None if trace.saturated else float(gaps_ns.std() / gaps_ns.mean()),
        num_distinct_arrivals=1 + int(np.count_nonzero(gaps_ns)),
        prompt=_lengths(np.concatenate([chunk.num_prompt_tokens for chunk in trace.chunks])),
        output=_lengths(np.concatenate([chunk.num_output_tokens for chunk in trace.chunks])),
        num_with_max_tokens=sum(
            int(np.count_nonzero(chunk.max_tokens >= 1)) for chunk in trace.chunks
        ),
        content_block_tokens=None if content is None else content.block_tokens,
    )


def _lengths(tokens: Int64) -> LengthSummary:
    p50, p90, p99 = np.percentile(tokens, [50, 90, 99]).tolist()
    return LengthSummary(float(tokens.mean()), p50, p90, p99, int(tokens.max()))
