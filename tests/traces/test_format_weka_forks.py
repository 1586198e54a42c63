"""Weka subagents that start with a call, or before the first one of their agent: whom they fork from."""

from pathlib import Path
from typing import Any

from format_cases import S, awaited, column, read


def call(t: float, **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "n", "model": "m", "in": 64, "out": 5, "hash_ids": [1]} | more


def subagent(t: float, duration_ms: float, *requests: dict[str, Any]) -> dict[str, Any]:
    return {"t": t, "type": "subagent", "duration_ms": duration_ms, "requests": list(requests)}


def session(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"models": ["m"], "block_size": 64, "requests": list(requests)}


def test_from_the_call_that_starts_with_it(tmp_path: Path) -> None:
    trace = read(
        tmp_path / "s.json", session(call(0, api_time=1), call(3), subagent(5, 2000, call(0)))
    )
    assert column(trace, "arrival_ns") == [0, 3 * S, 3 * S]
    assert awaited(trace) == [([], -1), ([0], 2 * S), ([1], 0)]


def test_from_the_call_that_its_agent_waits_for(tmp_path: Path) -> None:
    """An agent from 2 to 6 s starts another one at 2 s, before its own first call at 3 s."""
    inner = subagent(4, 2000, call(0))
    agent = subagent(6, 4000, call(3, api_time=0.5), inner)  # none is 0: times of the session
    trace = read(tmp_path / "s.json", session(call(0, api_time=1), agent, call(7)))
    assert column(trace, "arrival_ns") == [0, 2 * S, 3 * S, 7 * S]
    assert awaited(trace) == [([], -1), ([0], S), ([0], 2 * S), ([0, 1, 2], S)]
