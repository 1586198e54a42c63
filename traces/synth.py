"""Generated traces: lognormal lengths, Gamma inter-arrival times."""

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from .arrays import Int64
from .errors import UserError
from .trace import MAX_SPAN_NS, UNKNOWN_MAX_TOKENS, Trace, TraceChunk
from .workloads import WORKLOADS, Lengths

# The context length of the OPT models of the PagedAttention paper, which the means come from.
MAX_MODEL_LEN = 2048
MAX_REQUESTS = 10_000_000
MAX_CV = 100.0
MAX_RATE = 1e9  # one request a nanosecond, the resolution of the clock
# Requests per second when all arrive at once, as in `vllm bench serve --request-rate inf`.
ALL_AT_ONCE = math.inf


def synthesize(
    workload: str,
    num_requests: int,
    seed: int,
    rate: float | None = None,
    burstiness: float = 1.0,
    output_cv: float | None = None,
) -> Trace:
    """Draw `num_requests` requests of a named workload.

    `rate` is in requests per second; None and inf mean saturated, all requests at 0. Inter-arrival times
    are Gamma distributed with shape `burstiness` and mean 1/rate: 1 is a Poisson process, less is
    burstier (their CV is 1/sqrt(burstiness)). `output_cv` replaces the workload's own.

    Lengths are stratified draws, rounded to whole tokens of at least 1. Prompts are clipped to 2047 tokens, then
    outputs to what is left of 2048; `num_clipped` counts the requests that this shortened.
    Prompts, outputs and arrivals have streams of their own, so another rate keeps the lengths.

    Raises UserError for an unknown workload or a parameter out of range.
    """
    if workload not in WORKLOADS:
        raise UserError(f"workload is {workload!r}; it must be one of: {', '.join(WORKLOADS)}")
    if not 1 <= num_requests <= MAX_REQUESTS:
        raise UserError(f"num_requests is {num_requests}; it must be from 1 to {MAX_REQUESTS:,}")
    if seed < 0:
        raise UserError(f"seed is {seed}; it must be at least 0")
    lengths = WORKLOADS[workload]
    output = lengths.output
    if output_cv is not None:
        if not 0 < output_cv <= MAX_CV:
            raise UserError(f"output_cv is {output_cv}; it must be above 0 and at most {MAX_CV:g}")
        output = replace(output, cv=output_cv, cv_source="given by the user", cv_fitted=False)

    prompt_stream, output_stream, arrival_stream = (
        np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)
    )
    arrival_ns = _arrivals(arrival_stream, num_requests, rate, burstiness)
    wanted_prompt = _draw(prompt_stream, lengths.prompt, num_requests)
    wanted_output = _draw(output_stream, output, num_requests)
    num_prompt_tokens = np.minimum(wanted_prompt, MAX_MODEL_LEN - 1)
    num_output_tokens = np.minimum(wanted_output, MAX_MODEL_LEN - num_prompt_tokens)
    clipped = (num_prompt_tokens < wanted_prompt) | (num_output_tokens < wanted_output)
    chunk = TraceChunk(
        arrival_ns=arrival_ns,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
        max_tokens=np.full(num_requests, UNKNOWN_MAX_TOKENS, dtype=np.int64),
    )
    return Trace(
        workload, "synthetic", (chunk,), clipped_rows=tuple(np.flatnonzero(clipped).tolist())
    )


def starts_at_once(rate: float | None, arrivals: str = "poisson") -> bool:
    """Whether `rate` (per second) spreads nothing over time: None, or inf.

    Raises UserError for a rate out of range, and for `arrivals` of a shape that only a finite rate gives.
    """
    if rate is not None and rate != ALL_AT_ONCE:
        if not 0 < rate <= MAX_RATE:
            raise UserError(
                f"rate is {rate}; it must be above 0 and at most {MAX_RATE:g}, or inf (all at once)"
            )
        return False
    if arrivals != "poisson":
        raise UserError(
            f"arrivals are {arrivals!r}, but without a rate all sessions start at once;"
            " give a finite rate too"
        )
    return True


def _draw(stream: np.random.Generator, lengths: Lengths, n: int) -> Int64:
    """Stratified: one draw from each n-th of the distribution, in random order.

    With independent draws the mean of 2,000 heavy-tailed lengths is off by 2 % as often as not, and so is all that
    follows from it. Here any number of requests has the stated mean and spread; seeds differ in order and detail.
    """
    quantiles = (stream.permutation(n) + stream.random(n)) / n
    normal = NormalDist(lengths.mu, lengths.sigma)
    logs = [normal.inv_cdf(min(max(quantile, 1e-12), 1 - 1e-12)) for quantile in quantiles.tolist()]
    drawn = np.rint(np.exp(np.minimum(logs, 40.0)))
    # The upper bound only keeps a wild tail inside int64; clipping proper comes after it.
    return np.clip(drawn, 1, 2**40).astype(np.int64)


def _arrivals(stream: np.random.Generator, n: int, rate: float | None, burstiness: float) -> Int64:
    if not (math.isfinite(burstiness) and burstiness > 0):
        raise UserError(f"burstiness is {burstiness}; it must be a finite number above 0")
    if starts_at_once(rate):
        if burstiness != 1.0:
            raise UserError(
                f"burstiness is {burstiness}, but without a rate all requests arrive at once;"
                " give a finite rate too"
            )
        return np.zeros(n, dtype=np.int64)
    assert rate is not None
    with np.errstate(over="ignore", invalid="ignore"):  # the check below speaks for itself
        gaps_s = stream.gamma(burstiness, 1.0 / (rate * burstiness), n - 1)
        arrival_ns = np.concatenate(([0.0], np.cumsum(gaps_s))) * 1e9
    if not arrival_ns[-1] <= MAX_SPAN_NS:
        raise UserError(
            f"rate is {rate}; {n} requests would take longer than the limit of"
            f" {MAX_SPAN_NS // 10**9:,} s; use a higher rate or fewer requests"
        )
    return np.rint(arrival_ns).astype(np.int64)
