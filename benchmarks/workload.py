"""The requests that speed is measured on: two traces of one shape, at two rates."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from kvtwin.traces import Trace, TraceChunk, UserError, open_trace, synthesize, write_trace

NUM_REQUESTS = 10_000
QUICK_DIVISOR = 20
SHELL_REPEATS = 20
# Requests per second: one that the GPU keeps up with, one that it does not.
RATES = {"steady": 8.0, "saturated": 32.0}
_WORKLOAD = "sharegpt-like"
_SEED = 1


def trace_path(folder: Path, name: str, times: int = 1) -> Path:
    """Where `prepare` writes the trace `name` repeated `times`."""
    return folder / (f"{name}.csv" if times == 1 else f"{name}-x{times}.csv")


def find_given(asked: Path | None, root: Path) -> Path | None:
    """The folder of steady.csv and saturated.csv to measure on; None if they are to be generated.

    `asked` (--traces), else bench/ in the folder of reference data: KVTWIN_SHARED, or the one
    beside the repository at `root`. Raises UserError if `asked` lacks one of the two files.
    """
    if asked is not None:
        for name in RATES:
            if not (asked / f"{name}.csv").is_file():
                raise UserError(
                    f"--traces {asked}: {name}.csv is missing; name a folder with steady.csv and "
                    "saturated.csv, or leave --traces out to generate both"
                )
        return asked
    folder = Path(os.environ.get("KVTWIN_SHARED", root.parent / "shared")) / "bench"
    return folder if all((folder / f"{name}.csv").is_file() for name in RATES) else None


def prepare(given: Path | None, folder: Path, quick: bool) -> list[str]:
    """Write every trace that is measured on to `folder` as Vidur CSV; a line about each of the two.

    The first 10,000 requests of each, and where `quick` a twentieth of those. Raises UserError if
    a given trace has fewer, or has them all at one instant.
    """
    lines = []
    for name, rate in RATES.items():
        if given is None:
            trace = synthesize(_WORKLOAD, NUM_REQUESTS, _SEED, rate=rate)
            origin = f"generated ({_WORKLOAD}, seed {_SEED}, Poisson at {rate:g}/s)"
        else:
            trace = open_trace(given / f"{name}.csv")
            origin = f"given ({name}.csv, {trace.format})"
            if trace.saturated:
                raise UserError(
                    f"{given / name}.csv has all its requests arrive at once; use a trace with "
                    "arrivals over time or leave --traces out"
                )
            if trace.num_requests < NUM_REQUESTS:
                raise UserError(
                    f"{given / name}.csv has {trace.num_requests} requests; it must have at least "
                    f"{NUM_REQUESTS:,}; use a longer trace or leave --traces out"
                )
        trace = trace.head(NUM_REQUESTS // (QUICK_DIVISOR if quick else 1))
        write_trace(trace, trace_path(folder, name), "vidur")
        repeated = repeat(trace, SHELL_REPEATS)
        write_trace(repeated, trace_path(folder, name, SHELL_REPEATS), "vidur")
        lines.append(f"{name}: {origin}, {describe(trace)}")
    return lines


def describe(trace: Trace) -> str:
    """Number, mean lengths and rate of the requests."""
    chunk = _single(trace)
    span_s = float(chunk.arrival_ns[-1] - chunk.arrival_ns[0]) / 1e9
    return (
        f"{chunk.num_requests:,} requests, mean {chunk.num_prompt_tokens.mean():.1f} prompt and "
        f"{chunk.num_output_tokens.mean():.1f} output tokens, "
        f"{(chunk.num_requests - 1) / span_s:.1f} requests/s"
    )


def repeat(trace: Trace, times: int) -> Trace:
    """The trace `times` over, each copy one span and one mean gap after the one before it."""
    chunk = _single(trace)
    span_ns = int(chunk.arrival_ns[-1] - chunk.arrival_ns[0])
    shift_ns = span_ns + round(span_ns / (chunk.num_requests - 1))
    starts = np.repeat(np.arange(times, dtype=np.int64) * shift_ns, chunk.num_requests)
    repeated = TraceChunk(
        arrival_ns=np.tile(chunk.arrival_ns, times) + starts,
        num_prompt_tokens=np.tile(chunk.num_prompt_tokens, times),
        num_output_tokens=np.tile(chunk.num_output_tokens, times),
        max_tokens=np.tile(chunk.max_tokens, times),
    )
    return replace(trace, chunks=(repeated,))


def lengthen(trace: Trace, factor: int) -> Trace:
    """Prompts, outputs and the time between arrivals `factor` times as long.

    A request then takes about `factor` times as long too; with stretched arrivals as many run at
    once as before.
    """
    chunk = _single(trace)
    longer = replace(
        chunk,
        arrival_ns=chunk.arrival_ns * factor,
        num_prompt_tokens=chunk.num_prompt_tokens * factor,
        num_output_tokens=chunk.num_output_tokens * factor,
    )
    return replace(trace, chunks=(longer,))


def _single(trace: Trace) -> TraceChunk:
    assert len(trace.chunks) == 1, f"{trace.name} has {len(trace.chunks)} chunks, not one"
    return trace.chunks[0]
