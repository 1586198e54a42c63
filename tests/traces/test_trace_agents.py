"""Generated agent sessions: who waits for whom, what prompts share, and how much is drawn."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from format_cases import S, awaited, column, hits, lengths

from kvtwin.traces import AgentMix, UserError, describe, generate_agents, write_trace

MIX = AgentMix(
    task="fixed:100",
    output="fixed:10",
    tool_result="range:40,0.5",
    rate=0.5,
    mean_calls=6.0,
    mean_tool_s=2.0,
    system_prompt_tokens=300,
)


def test_a_chain_grows_by_answer_and_tool_result() -> None:
    trace = generate_agents("g", MIX, 3000, seed=1)
    sessions = trace.chunks[0].sessions
    assert sessions is not None
    rows, seen, found = lengths(trace), hits(trace), awaited(trace)
    for row, (before, think_ns) in enumerate(found):
        prompt, output = rows[row]
        assert output == 10
        if before:
            (previous,) = before
            assert 20 <= prompt - rows[previous][0] - 10 <= 60
            assert seen[row] == rows[previous][0] + 10 - 1
            assert think_ns >= 0
        else:
            assert (prompt, seen[row]) == (400, 300 if row else 0)
    summary = describe(trace).sessions
    assert summary is not None
    # Geometric with mean 6: its deviation is sqrt(30).
    assert abs(summary.mean_calls - 6) <= 5 * math.sqrt(30 / summary.num_sessions)
    assert summary.mean_think_s == pytest.approx(2, rel=5 / math.sqrt(2400))
    assert (summary.num_forks, summary.num_joins) == (0, 0)


def test_subagents_fork_and_join() -> None:
    trace = generate_agents("g", replace(MIX, subagent_share=0.4), 3000, seed=1)
    found, rows, seen = awaited(trace), lengths(trace), hits(trace)
    joins = [row for row, (before, _) in enumerate(found) if len(before) == 2]
    sessions = trace.chunks[0].sessions
    assert sessions is not None
    summary = describe(trace).sessions
    assert summary is not None
    # A subagent starts as soon as the call before has finished; only the last may be cut off.
    assert summary.num_joins == len(joins)
    assert 0 <= summary.num_forks - len(joins) <= 1
    for row in joins:
        main, last = sorted(found[row][0], key=lambda r: rows[r][0] != rows[row][0])
        assert sessions.session[main] == sessions.session[last] == sessions.session[row]
    first_calls = [row for row, (prompt, _) in enumerate(rows) if prompt == 400]
    # First calls share only their own system prompt: that of a session, or that of a subagent.
    assert {seen[row] for row in first_calls} == {0, 300}
    assert sum(seen[row] == 0 for row in first_calls) == 2


def test_an_agent_stops_before_it_outgrows_the_model() -> None:
    mix = replace(MIX, mean_calls=1000.0, max_model_len=600)
    trace = generate_agents("g", mix, 400, seed=2)
    assert 550 < max(p + o for p, o in lengths(trace)) <= 600
    with pytest.raises(UserError, match="a first call has 410 tokens, but max_model_len is 409"):
        generate_agents("g", replace(mix, max_model_len=409), 5, 1)


def test_arrivals_are_those_of_sessions() -> None:
    trace = generate_agents("g", replace(MIX, mean_calls=1.0), 4000, seed=3)
    assert trace.num_requests / (trace.chunks[0].arrival_ns[-1] / S) == pytest.approx(0.5, rel=0.08)
    assert all(not before for before, _ in awaited(trace))


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    mix = replace(MIX, subagent_share=0.3)
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        write_trace(generate_agents("g", mix, 200, seed), tmp_path / name, "kvtwin-parquet")
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_an_infinite_rate_starts_all_sessions_at_once() -> None:
    trace = generate_agents("g", replace(MIX, rate=float("inf")), 60, seed=1)
    arrival_ns = column(trace, "arrival_ns")
    first = [ns for ns, (before, _) in zip(arrival_ns, awaited(trace), strict=True) if not before]
    assert len(first) > 3
    assert set(first) == {0}
    assert max(arrival_ns) > 0  # later calls come when their tools have ended


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rate": 0.0}, r"rate is 0\.0"),
        ({"rate": float("inf"), "arrivals": "gamma:2"}, "'gamma:2', but without a rate all"),
        ({"mean_calls": 0.0}, "mean_calls is"),
        ({"subagent_share": 1.5}, r"subagent_share is 1\.5; it must be from 0 to 1"),
        ({"mean_tool_s": math.inf}, "mean_tool_s is inf"),
        ({"tool_result": "poems"}, "lengths are 'poems'"),
        ({"arrivals": "poems"}, "arrivals are 'poems'; they must be one of: poisson, gamma:SHAPE"),
        ({"rate": 1e-12}, "use a higher rate"),
    ],
)
def test_bad_mixes(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        generate_agents("g", replace(MIX, **changes), 20, 1)  # type: ignore[arg-type]
