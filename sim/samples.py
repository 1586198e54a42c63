"""How many sequences a request has, and how long each of them gets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvtwin.traces import Trace

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sampling:
    """What is asked of every prompt.

    `num_samples`: outputs; None: what the trace says, else 1. `lengths` of a request's further samples: `independent`,
    each as long as the output of a request of the trace, drawn evenly; `equal`, as long as the first. `beam_width`:
    if above 1, a beam search in place of samples, whose beams all have the length of the request's output.
    """

    num_samples: int | None = None
    beam_width: int = 1
    lengths: str = "independent"
    seed: int = 0


ONE_SAMPLE = Sampling(num_samples=1)


def branch_outputs(
    trace: Trace, sampling: Sampling, num_output_tokens: Ints, most_output_tokens: Ints
) -> list[tuple[int, ...]]:
    """Output tokens of each sequence of each request, the request's own first.

    `num_output_tokens` are those of the requests, clipped; no further sample of a request is longer than its
    `most_output_tokens`. Both have shape [n].
    """
    num = len(num_output_tokens)
    if sampling.beam_width > 1:
        num_branches = np.full(num, sampling.beam_width)
    elif sampling.num_samples is not None:
        num_branches = np.full(num, sampling.num_samples)
    else:
        num_branches = np.concatenate(
            [
                np.ones(chunk.num_requests, np.int64)
                if chunk.num_samples is None
                else chunk.num_samples
                for chunk in trace.chunks
            ]
        )
    rows = np.repeat(np.arange(num), num_branches)
    outputs = num_output_tokens[rows]
    if sampling.lengths == "independent" and sampling.beam_width == 1:
        # A random stream of its own: what else is drawn with this seed does not shift it.
        stream = np.random.default_rng([sampling.seed, 0x5A3])
        original = np.concatenate([chunk.num_output_tokens for chunk in trace.chunks])
        is_further = np.concatenate(([False], rows[1:] == rows[:-1]))
        drawn = original[stream.integers(num, size=int(is_further.sum()))]
        outputs[is_further] = np.minimum(drawn, np.maximum(most_output_tokens[rows[is_further]], 1))
    flat = outputs.tolist()
    ends = np.cumsum(num_branches).tolist()
    return [tuple(flat[end - n : end]) for end, n in zip(ends, num_branches.tolist(), strict=True)]
