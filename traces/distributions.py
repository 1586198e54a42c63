"""Distributions that generated traces draw from, written as text: `NAME:NUMBER,NUMBER`.

Lengths, in tokens: `fixed:N`; `lognormal:MEAN,CV`; `zipf:ALPHA,MAX`, P(k) proportional to k^-ALPHA for k from
1 to MAX; `range:N,RATIO`, uniform from N(1 - RATIO) to N(1 + RATIO) as `--random-range-ratio` of vLLM's
benchmark. `trace:FILE` for prompts and outputs alike: those of a trace's rows, drawn in pairs.
Arrivals, at a mean rate: `poisson`; `gamma:SHAPE` and `weibull:SHAPE` between arrivals, 1 is Poisson and less
is burstier; `on-off:ON,OFF`, Poisson for ON seconds and then nobody for OFF, (ON + OFF) / ON
times the rate during ON; `diurnal:AMPLITUDE,PERIOD`,
Poisson with a rate that swings as a sine by AMPLITUDE (below 1) of itself in PERIOD seconds.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from .arrays import Int64
from .errors import UserError
from .files import open_trace

_TRACE = "trace:"
Float64 = npt.NDArray[np.float64]
Fields = tuple[tuple[str, float, float], ...]  # name, what it is above, what it is at most
# Below it nearly all gaps are 0 and a few are without measure; the mean of a Weibull gap overflows.
_LEAST_SHAPE = 0.01
_LENGTHS: Mapping[str, Fields] = MappingProxyType(
    {
        "fixed": (("N", 0, 10**7),),
        "lognormal": (("MEAN", 0, 10**7), ("CV", 0, 100)),
        "zipf": (("ALPHA", 0, 100), ("MAX", 0, 10**7)),
        "range": (("N", 0, 10**7), ("RATIO", -1e-12, 1)),
    }
)
_ARRIVALS: Mapping[str, Fields] = MappingProxyType(
    {
        "poisson": (),
        "gamma": (("SHAPE", _LEAST_SHAPE, 10**6),),
        "weibull": (("SHAPE", _LEAST_SHAPE, 10**6),),
        "on-off": (("ON", 1e-9, 10**9), ("OFF", 0, 10**9)),
        "diurnal": (("AMPLITUDE", -1e-12, 1 - 1e-9), ("PERIOD", 0, 10**9)),
    }
)


def draw_lengths(text: str, rng: np.random.Generator, n: int) -> Int64:
    """`n` token counts of at least 1. Raises UserError for what is no such distribution."""
    name, numbers = _parsed(text, _LENGTHS, "lengths")
    if name == "fixed":
        drawn = np.full(n, numbers[0])
    elif name == "lognormal":
        mean, cv = numbers
        sigma = math.sqrt(math.log1p(cv**2))
        drawn = rng.lognormal(math.log(mean) - sigma**2 / 2, sigma, n)
    elif name == "zipf":
        alpha, most = numbers
        weights = np.arange(1, int(most) + 1) ** -alpha
        ends = np.cumsum(weights)
        drawn = 1.0 + np.searchsorted(ends, rng.random(n) * ends[-1], side="right")
    else:
        middle, ratio = numbers
        low, high = math.ceil(middle * (1 - ratio)), math.floor(middle * (1 + ratio))
        drawn = rng.integers(max(low, 1), max(high, 1), n, endpoint=True).astype(np.float64)
    lengths: Int64 = np.clip(np.rint(drawn), 1, 10**7).astype(np.int64)
    return lengths


def draw_pairs(
    prompt: str,
    output: str,
    prompt_rng: np.random.Generator,
    output_rng: np.random.Generator,
    n: int,
) -> tuple[Int64, Int64]:
    """`n` prompts and outputs: independent of each other, or rows of one trace.

    Raises UserError for what is no such distribution, and as `open_trace` for the trace.
    """
    if not (prompt.startswith(_TRACE) or output.startswith(_TRACE)):
        return draw_lengths(prompt, prompt_rng, n), draw_lengths(output, output_rng, n)
    if prompt != output:
        raise UserError(
            f"prompts are {prompt!r} and outputs {output!r}; trace:FILE has to stand for both"
        )
    chunks = open_trace(prompt.removeprefix(_TRACE)).chunks
    prompts = np.concatenate([chunk.num_prompt_tokens for chunk in chunks])
    outputs = np.concatenate([chunk.num_output_tokens for chunk in chunks])
    rows = prompt_rng.integers(len(prompts), size=n)
    return prompts[rows], outputs[rows]


def draw_arrivals(text: str, rate: float, rng: np.random.Generator, n: int) -> Float64:
    """`n` arrivals in seconds, the first at 0, ascending, `rate` a second on average."""
    name, numbers = _parsed(text, _ARRIVALS, "arrivals")
    if name == "gamma":
        return _summed(rng.gamma(numbers[0], 1 / (rate * numbers[0]), n - 1))
    if name == "weibull":
        shape = numbers[0]
        return _summed(rng.weibull(shape, n - 1) / (rate * math.gamma(1 + 1 / shape)))
    if name == "on-off":
        on_s, off_s = numbers
        busy_s = _summed(rng.exponential(on_s / (rate * (on_s + off_s)), n - 1))
        arrivals_s: Float64 = busy_s + np.floor(busy_s / on_s) * off_s
        return arrivals_s
    steady_s = _summed(rng.exponential(1 / rate, n - 1))
    if name == "poisson":
        return steady_s
    # A Poisson process in the time in which the rate is steady, taken back to the clock's time.
    amplitude, period_s = numbers
    swing_s = amplitude * period_s / (2 * math.pi)
    low, high = steady_s - 2 * swing_s, steady_s + 2 * swing_s
    for _ in range(60):  # halves: what is left of an hour is far below a nanosecond
        middle = (low + high) / 2
        passed = middle + swing_s * (1 - np.cos(2 * math.pi * middle / period_s))
        low, high = (
            np.where(passed < steady_s, middle, low),
            np.where(passed < steady_s, high, middle),
        )
    arrivals: Float64 = np.maximum.accumulate(np.maximum(high, 0.0))
    arrivals -= arrivals[0]
    return arrivals


def _summed(gaps_s: Float64) -> Float64:
    return np.concatenate(([0.0], np.cumsum(gaps_s)))


def _parsed(text: str, known: Mapping[str, Fields], what: str) -> tuple[str, Sequence[float]]:
    name, _, rest = text.partition(":")
    if name not in known:
        raise UserError(
            f"{what} are {text!r}; they must be one of: {', '.join(map(_usage, known.items()))}"
        )
    fields = known[name]
    try:
        numbers = [float(number) for number in rest.split(",")] if rest else []
    except ValueError:
        numbers = []
    if len(numbers) != len(fields):
        raise UserError(f"{what} are {text!r}; write {_usage((name, fields))}")
    for (field, above, most), number in zip(fields, numbers, strict=True):
        if not above < number <= most:
            raise UserError(
                f"{what} are {text!r}; {field} must be above {max(above, 0):g} and at most {most:g}"
            )
    return name, numbers


def _usage(known: tuple[str, Fields]) -> str:
    name, fields = known
    return f"{name}:{','.join(field for field, _, _ in fields)}" if fields else name
