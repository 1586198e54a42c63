"""What the figure of a trace draws: arrivals and hits over time, and how lengths are distributed."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvtwin.traces import Trace, find_prefixes

from .definitions import NS_PER_S

Float64 = npt.NDArray[np.float64]
NUM_BINS = 200


@dataclass(frozen=True, eq=False)
class TraceShape:
    """`edges_s` [b + 1]: bins of time; per bin: requests a second, and tokens of prompts and of hits.

    `lengths`: for each kind, token counts (ascending) and the share of requests with at most so many.
    Without content there are no hits.
    """

    name: str
    edges_s: Float64
    requests_per_s: Float64
    hit_share: Float64 | None  # of an infinite cache; NaN where no prompt came
    lengths: dict[str, tuple[Float64, Float64]]


def shape_of(trace: Trace) -> TraceShape:
    """The shape of a trace; one that arrives at one instant has a single bin of one second."""
    arrivals_s, prompts, outputs = (
        np.concatenate([getattr(chunk, name) for chunk in trace.chunks])
        for name in ("arrival_ns", "num_prompt_tokens", "num_output_tokens")
    )
    arrivals_s = arrivals_s / NS_PER_S
    num_bins = 1 if trace.saturated else NUM_BINS
    edges_s = np.linspace(0.0, arrivals_s[-1] or 1.0, num_bins + 1)
    counts, _ = np.histogram(arrivals_s, edges_s)
    hit_share = None
    if trace.chunks[0].content is not None:
        seen = np.minimum(find_prefixes(trace).num_seen_tokens(), prompts)
        hit_tokens, _ = np.histogram(arrivals_s, edges_s, weights=seen)
        tokens, _ = np.histogram(arrivals_s, edges_s, weights=prompts)
        hit_share = np.full(num_bins, np.nan)
        np.divide(hit_tokens, tokens, out=hit_share, where=tokens > 0)
    return TraceShape(
        trace.name,
        edges_s,
        counts / np.diff(edges_s),
        hit_share,
        {"prompt": _distribution(prompts), "output": _distribution(outputs)},
    )


def _distribution(tokens: npt.NDArray[np.int64]) -> tuple[Float64, Float64]:
    values, counts = np.unique(tokens, return_counts=True)
    return values.astype(np.float64), np.cumsum(counts) / len(tokens)
