"""Generated mixes: distributions against their formulas, chats against their definition."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from format_cases import awaited, column, hits, lengths, write

from kvtwin.analysis.cli import main
from kvtwin.traces import Mix, UserError, describe, generate, prefix_hits, write_trace
from kvtwin.traces.distributions import draw_arrivals, draw_lengths, draw_pairs

N = 40_000


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


# Tolerances are five standard errors of N draws.
@pytest.mark.parametrize(
    ("text", "mean", "deviation", "least", "most"),
    [
        ("fixed:128", 128, 0, 128, 128),
        ("lognormal:1000,0.5", 1000, 500, 1, 10**7),
        ("range:100,0.25", 100, math.sqrt((51**2 - 1) / 12), 75, 125),
        ("range:7,0", 7, 0, 7, 7),
        # Zipf with exponent 0 is uniform on 1 to 9.
        ("zipf:1e-9,9", 5, math.sqrt(80 / 12), 1, 9),
    ],
)
def test_lengths(text: str, mean: float, deviation: float, least: int, most: int) -> None:
    drawn = draw_lengths(text, rng(), N)
    assert abs(drawn.mean() - mean) <= 5 * deviation / math.sqrt(N)
    assert drawn.std() == pytest.approx(deviation, rel=0.05)
    assert least <= drawn.min() <= drawn.max() <= most


def test_zipf_falls_with_its_exponent() -> None:
    drawn = draw_lengths("zipf:2,1000", rng(), N)
    total = sum(k**-2 for k in range(1, 1001))
    for k in (1, 2, 3):
        share = k**-2 / total
        found = float((drawn == k).mean())
        assert abs(found - share) <= 5 * math.sqrt(share * (1 - share) / N)


@pytest.mark.parametrize(
    ("text", "cv"),
    [
        ("poisson", 1.0),
        ("gamma:0.25", 2.0),
        ("gamma:4", 0.5),
        # A Weibull's CV, from Gamma(1 + 2/k) / Gamma(1 + 1/k)^2 - 1; for shape 1/2 it is sqrt(5).
        ("weibull:0.5", math.sqrt(5)),
        ("weibull:1", 1.0),
    ],
)
def test_gaps(text: str, cv: float) -> None:
    arrivals = draw_arrivals(text, 8.0, rng(), N)
    gaps = np.diff(arrivals)
    assert arrivals[0] == 0
    assert abs(gaps.mean() * 8 - 1) <= 5 * cv / math.sqrt(N)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_on_and_off() -> None:
    arrivals = draw_arrivals("on-off:10,30", 2.0, rng(), N)
    assert (arrivals % 40 < 10).all()
    assert N / arrivals[-1] == pytest.approx(2.0, rel=0.05)
    # All of it in a quarter of the time: four times the rate there.
    in_cycle = np.histogram(arrivals % 40, bins=4, range=(0, 10))[0]
    assert in_cycle == pytest.approx(np.full(4, N / 4), abs=5 * math.sqrt(N / 4))


def test_the_help_says_of_which_phase_the_rate_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["trace", "synth", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "--rate is the mean over ON and OFF: during ON it is (ON + OFF) / ON times that." in said
    assert "Requests per second, the mean over all phases of --arrivals, or inf" in said


def test_a_day_has_its_peak() -> None:
    period = 100.0
    arrivals = draw_arrivals(f"diurnal:0.8,{period}", 20.0, rng(), N)
    assert (np.diff(arrivals) >= 0).all()
    assert N / arrivals[-1] == pytest.approx(20.0, rel=0.05)
    counts = np.histogram(arrivals[arrivals < 1900] % period, bins=4, range=(0, period))[0]
    # The integral of 1 + 0.8 sin over a quarter of its period is a quarter plus or minus 0.8/2pi.
    share = np.array([0.25 + 0.8 / (2 * math.pi)] * 2 + [0.25 - 0.8 / (2 * math.pi)] * 2)
    assert counts / counts.sum() == pytest.approx(share, abs=5 * 0.5 / math.sqrt(counts.sum()))


def test_lengths_of_a_trace_stay_pairs(tmp_path: Path) -> None:
    rows = "".join(f"{n},{n * 3}\n" for n in range(1, 20))
    path = write(tmp_path / "v.csv", "num_prefill_tokens,num_decode_tokens\n" + rows)
    prompts, outputs = draw_pairs(f"trace:{path}", f"trace:{path}", rng(), rng(), 500)
    assert (outputs == 3 * prompts).all()
    assert set(prompts.tolist()) == set(range(1, 20))
    with pytest.raises(UserError, match="trace:FILE has to stand for both"):
        draw_pairs(f"trace:{path}", "fixed:3", rng(), rng(), 5)


MIX = Mix("lognormal:50,1", "range:20,0.5", rate=2.0)


def test_single_requests_with_shared_system_prompts() -> None:
    mix = replace(MIX, num_system_prompts=3, system_prompt_tokens=1000)
    trace = generate("g", mix, 500, seed=1)
    assert trace.chunks[0].sessions is None
    found = hits(trace)
    # Each system prompt is new once, and then all of it is found, and nothing of the message.
    assert sorted(found) == [0] * 3 + [1000] * 497
    assert min(column(trace, "num_prompt_tokens")) > 1000
    plain = generate("g", MIX, 500, seed=1)
    assert sum(hits(plain)) == 0
    # Streams of their own: the messages, outputs and arrivals are the same.
    assert [p - 1000 for p in column(trace, "num_prompt_tokens")] == (
        column(plain, "num_prompt_tokens")
    )
    for name in ("num_output_tokens", "arrival_ns"):
        assert column(trace, name) == column(plain, name)


def test_chats_grow_by_message_and_answer() -> None:
    mix = replace(MIX, mean_turns=5.0, mean_think_s=10.0)
    trace = generate("g", mix, 4000, seed=2)
    summary = describe(trace)
    sessions = summary.sessions
    assert sessions is not None
    assert sessions.num_calls == 4000
    # Geometric with mean 5: its deviation is sqrt(20).
    assert abs(sessions.mean_calls - 5) <= 5 * math.sqrt(20 / sessions.num_sessions)
    assert sessions.mean_think_s == pytest.approx(10, rel=5 / math.sqrt(3000))
    seen = hits(trace)
    rows = lengths(trace)
    waits_for = awaited(trace)
    assert sum(bool(before) for before, _ in waits_for) == 4000 - sessions.num_sessions
    for row, (before, _) in enumerate(waits_for):
        if before:
            (previous,) = before
            prompt, output = rows[previous]
            # All of the turn before but its last token, whose KV is never computed, is found again.
            assert seen[row] == prompt + output - 1
            assert rows[row][0] > prompt + output
        else:
            assert seen[row] == 0


def test_an_infinite_rate_is_none() -> None:
    mixes = (Mix("fixed:9", "fixed:9", rate=rate, mean_turns=3.0) for rate in (None, math.inf))
    plain, infinite = (generate("t", mix, 50, 3).chunks[0] for mix in mixes)
    assert infinite.arrival_ns.tolist() == plain.arrival_ns.tolist()


def test_a_rate_counts_all_turns() -> None:
    """Sessions start at a rate that makes turns, thinking aside, as many a second as asked for."""
    for turns in (1.0, 4.0):
        mix = Mix("fixed:9", "fixed:9", rate=5.0, mean_turns=turns)
        chunk = generate("t", mix, N, 3).chunks[0]
        # Starts of sessions are Poisson: five standard errors of as many gaps.
        num_starts = N if chunk.sessions is None else len(np.unique(chunk.sessions.session))
        assert N / (chunk.arrival_ns[-1] / 1e9) == pytest.approx(5.0, rel=5 / math.sqrt(num_starts))


def test_chats_end_before_they_outgrow_the_model() -> None:
    mix = Mix("fixed:30", "fixed:20", mean_turns=1000.0, max_model_len=170)
    trace = generate("g", mix, 300, seed=1)
    assert max(p + o for p, o in lengths(trace)) == 150
    assert trace.num_clipped == 0
    # Three turns of 50 tokens fit: the second finds 49 tokens of the first, the third 99.
    (own,) = prefix_hits(trace)
    sessions = trace.chunks[0].sessions
    assert sessions is not None
    calls = sessions.call.tolist()
    assert set(calls) == {0, 1, 2}
    assert own.num_hit_tokens == calls.count(1) * 49 + calls.count(2) * 99
    long = generate("g", Mix("fixed:150", "fixed:50", max_model_len=170), 3, seed=1)
    assert (lengths(long), long.num_clipped) == ([(150, 20)] * 3, 3)


def test_priorities_and_samples() -> None:
    chats = replace(MIX, mean_turns=3.0, mean_think_s=10.0)
    mix = replace(chats, num_priorities=4, num_samples=2)
    trace = generate("g", mix, 2000, seed=4)
    (chunk,) = trace.chunks
    assert chunk.priority is not None
    assert chunk.sessions is not None
    of_session = dict(zip(chunk.sessions.session.tolist(), chunk.priority.tolist(), strict=True))
    assert [of_session[s] for s in chunk.sessions.session.tolist()] == chunk.priority.tolist()
    counts = np.bincount(list(of_session.values()), minlength=4)
    num = len(of_session)
    assert abs(counts - num / 4).max() <= 5 * math.sqrt(num * 0.25 * 0.75)
    summary = describe(trace)
    assert (summary.num_priorities, summary.mean_samples) == (4, 2.0)
    plain = generate("g", chats, 2000, seed=4)
    assert (plain.chunks[0].priority, plain.chunks[0].num_samples) == (None, None)
    assert lengths(plain) == lengths(trace)
    assert (describe(plain).num_priorities, describe(plain).mean_samples) == (None, None)


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    mix = replace(MIX, num_system_prompts=2, system_prompt_tokens=64, mean_turns=3.0)
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        write_trace(generate("g", mix, 200, seed), tmp_path / name, "kvtwin-parquet")
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt": "poems"}, "lengths are 'poems'; they must be one of: fixed:N, lognormal:"),
        ({"prompt": "fixed"}, "lengths are 'fixed'; write fixed:N"),
        ({"prompt": "fixed:1,2"}, "write fixed:N"),
        ({"prompt": "fixed:x"}, "write fixed:N"),
        ({"prompt": "fixed:0"}, "N must be above 0"),
        ({"output": "lognormal:nan,1"}, "MEAN must be above 0"),
        ({"output": "range:5,1.5"}, "RATIO must be above 0 and at most 1"),
        ({"arrivals": "on-off:5"}, "arrivals are 'on-off:5'; write on-off:ON,OFF"),
        ({"arrivals": "diurnal:1,5"}, "AMPLITUDE must be"),
        ({"arrivals": "weibull:0.001"}, "SHAPE must be above 0.01"),
        ({"arrivals": "gamma:1e-300"}, "SHAPE must be above 0.01"),
        ({"arrivals": "on-off:1e-300,5"}, "ON must be above 1e-09"),
        ({"arrivals": "gamma:2", "rate": None}, "without a rate all sessions start at once"),
        ({"rate": 0.0}, r"rate is 0\.0"),
        ({"rate": 1e-9}, "1,000,000,000 s; use a higher rate"),
        ({"num_system_prompts": 3}, "need both a number and a length"),
        ({"num_system_prompts": 3, "system_prompt_tokens": 131_071}, "leaves no room"),
        ({"mean_turns": 0.5}, r"mean_turns is 0\.5; it must be from 1"),
        ({"mean_think_s": math.nan}, "mean_think_s is nan"),
    ],
)
def test_bad_mixes(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        generate("g", replace(MIX, **changes), 10, 1)  # type: ignore[arg-type]
