"""Generated traces: distributions, clipping, repeatability."""

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest

from kvtwin.traces import (
    WORKLOADS,
    TraceChunk,
    UserError,
    describe,
    open_trace,
    synthesize,
    write_trace,
)
from kvtwin.traces.workloads import Lengths

SAMPLE = Path(__file__).parents[2] / "traces/samples/sharegpt-like-200.csv"
N = 40_000


def chunk_of(*args: object, **kwargs: object) -> TraceChunk:
    return synthesize(*args, **kwargs).chunks[0]  # type: ignore[arg-type]


def expected_mean(lengths: Lengths, limit: int) -> float:
    """Mean of min(X, limit) for the lognormal X: its closed form."""
    mu, sigma = lengths.mu, lengths.sigma

    def below(x: float) -> float:
        return 0.5 * (1 + math.erf(x / math.sqrt(2)))

    z = (math.log(limit) - mu) / sigma
    return lengths.mean * below(z - sigma) + limit * (1 - below(z))


def test_lognormal_parameters_give_mean_and_cv() -> None:
    for workload in WORKLOADS.values():
        for lengths in (workload.prompt, workload.output):
            variance = math.exp(lengths.sigma**2) - 1
            assert math.exp(lengths.mu + lengths.sigma**2 / 2) == pytest.approx(lengths.mean)
            assert math.sqrt(variance) == pytest.approx(lengths.cv)


def test_published_means_and_fitted_spreads() -> None:
    numbers = {
        name: (w.prompt.mean, w.prompt.cv, w.output.mean, w.output.cv)
        for name, w in WORKLOADS.items()
    }
    assert numbers == {
        "sharegpt-like": (161.31, 1.3, 337.99, 0.88),
        "alpaca-like": (19.31, 0.8, 58.45, 1.0),
    }
    for workload in WORKLOADS.values():
        assert "Figure 11" in workload.prompt.mean_source
        assert workload.prompt.cv_fitted
        assert workload.output.cv_fitted


# Means of 40,000 draws have a standard error of cv/200 of the mean: below 0.65 %. The bound is
# five of them. CVs of a lognormal have heavy-tailed estimates; 8 % is five standard errors at 1.3.
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("seed", [1, 2])
def test_means_and_spreads(name: str, seed: int) -> None:
    chunk = chunk_of(name, N, seed)
    workload = WORKLOADS[name]
    for tokens, lengths, limit in (
        (chunk.num_prompt_tokens, workload.prompt, 2047),
        (chunk.num_output_tokens, workload.output, 2048 - round(workload.prompt.mean)),
    ):
        mean = expected_mean(lengths, limit)
        assert tokens.mean() == pytest.approx(mean, rel=5 * lengths.cv / math.sqrt(N))
    # Clipping hardly touches these two.
    assert np.std(chunk.num_output_tokens) / chunk.num_output_tokens.mean() == pytest.approx(
        workload.output.cv, rel=0.08
    )
    correlation = np.corrcoef(chunk.num_prompt_tokens, chunk.num_output_tokens)[0, 1]
    assert (
        abs(correlation) < 5 / math.sqrt(N) + 0.01
    )  # clipped to a common limit: slightly negative


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_arrivals(burstiness: float) -> None:
    summary = describe(synthesize("alpaca-like", N, 3, rate=8.0, burstiness=burstiness))
    cv = 1 / math.sqrt(burstiness)
    assert summary.rate == pytest.approx(8.0, rel=5 * cv / math.sqrt(N))
    assert summary.interarrival_cv == pytest.approx(cv, rel=0.05)
    assert not summary.saturated


def test_first_arrival_is_0_and_without_a_rate_all_are() -> None:
    assert chunk_of("alpaca-like", 5, 1, rate=1.0).arrival_ns[0] == 0
    trace = synthesize("alpaca-like", 5, 1)
    assert trace.saturated
    assert trace.chunks[0].arrival_ns.tolist() == [0] * 5
    assert describe(trace).rate is None
    infinite = synthesize("alpaca-like", 5, 1, rate=math.inf)
    assert describe(infinite) == describe(trace)


def test_lengths_do_not_depend_on_arrivals() -> None:
    first, second = (
        chunk_of("sharegpt-like", 500, 7, **kwargs)
        for kwargs in ({}, {"rate": 3.0, "burstiness": 0.5})
    )
    assert (first.num_prompt_tokens == second.num_prompt_tokens).all()
    assert (first.num_output_tokens == second.num_output_tokens).all()
    other = chunk_of("sharegpt-like", 500, 8)
    assert (first.num_prompt_tokens != other.num_prompt_tokens).any()


def test_prompts_do_not_depend_on_the_output_cv() -> None:
    first = chunk_of("sharegpt-like", 500, 7)
    second = chunk_of("sharegpt-like", 500, 7, output_cv=0.1)
    assert (first.num_prompt_tokens == second.num_prompt_tokens).all()
    is_whole = second.num_prompt_tokens + second.num_output_tokens < 2048
    outputs = second.num_output_tokens[is_whole]
    spread = outputs.std() / outputs.mean()
    assert spread == pytest.approx(0.1, rel=0.2)


def test_clips_are_applied_and_counted() -> None:
    trace = synthesize("sharegpt-like", N, 5, output_cv=3.0)
    chunk = trace.chunks[0]
    total = chunk.num_prompt_tokens + chunk.num_output_tokens
    assert total.max() == 2048
    assert chunk.num_prompt_tokens.max() == 2047
    # Every clipped output fills the context; few unclipped ones do so by chance.
    assert 0 < trace.num_clipped <= (total == 2048).sum()
    assert trace.num_clipped > 0.9 * (total == 2048).sum()
    assert min(chunk.num_prompt_tokens.min(), chunk.num_output_tokens.min()) == 1
    assert synthesize("alpaca-like", 100, 5, output_cv=0.1).num_clipped == 0


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    digests = set()
    for name in ("a", "b"):
        write_trace(synthesize("sharegpt-like", 300, 11, rate=2.0), tmp_path / name, "kvtwin-csv")
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1


def test_shipped_sample_is_what_its_readme_says(tmp_path: Path) -> None:
    trace = synthesize("sharegpt-like", 200, 1, rate=2.0)
    write_trace(trace, tmp_path / "again.csv", "kvtwin-csv")
    assert (tmp_path / "again.csv").read_bytes() == SAMPLE.read_bytes()
    assert open_trace(SAMPLE).num_requests == 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"workload": "poems"}, "workload is 'poems'; it must be one of: sharegpt-like"),
        ({"num_requests": 0}, "num_requests is 0; it must be from 1 to 10,000,000"),
        ({"num_requests": 10**9}, "num_requests is 1000000000"),
        ({"seed": -1}, "seed is -1; it must be at least 0"),
        ({"rate": 0.0}, r"rate is 0\.0; it must be above 0"),
        ({"rate": math.nan}, "rate is nan"),
        ({"rate": -math.inf}, "rate is -inf"),
        ({"rate": math.inf, "burstiness": 0.5}, "without a rate all requests arrive at once"),
        ({"rate": 1e-12}, "1,000,000,000 s; use a higher rate"),
        ({"rate": 1e-320}, "1,000,000,000 s; use a higher rate"),
        ({"rate": 1.0, "burstiness": 0.0}, r"burstiness is 0\.0"),
        ({"rate": 1.0, "burstiness": math.inf}, "burstiness is inf"),
        ({"burstiness": 0.5}, "without a rate all requests arrive at once"),
        ({"output_cv": 0.0}, r"output_cv is 0\.0"),
        ({"output_cv": math.nan}, "output_cv is nan"),
        ({"output_cv": 1e9}, "at most 100"),
    ],
)
def test_bad_parameters(arguments: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        synthesize(**({"workload": "alpaca-like", "num_requests": 3, "seed": 1} | arguments))  # type: ignore[arg-type]


def test_extreme_parameters_stay_in_range() -> None:
    chunk = chunk_of("sharegpt-like", 2000, 1, rate=1e9, burstiness=1e-3, output_cv=100.0)
    assert (chunk.num_prompt_tokens + chunk.num_output_tokens).max() <= 2048
