"""A closed loop by hand and by its definition: who comes when, and what is the same as in an open loop."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from example_counts import examples
from hand_runs import STEP_NS
from hypothesis import assume, given, settings
from random_cases import config_of, configs, session_traces, trace_of
from session_runs import loop, sessions_of, steps

from kvtwin.sim import RunConfig, simulate
from kvtwin.sim.engine import Engine
from kvtwin.sim.queue import WaitingQueue, sequence_of
from kvtwin.traces import (
    AgentMix,
    Mix,
    Trace,
    UserError,
    generate,
    generate_agents,
    waits,
)


def test_a_chain_comes_after_its_answers(tmp_path: Path) -> None:
    """Three calls of 2 steps each, recorded one step apart, that think for 3 and 0 steps."""
    trace = sessions_of(
        (0, 1, 2, 0, 0, -1, -1, -1), (1, 1, 2, 0, 1, 0, 3, -1), (2, 1, 2, 0, 2, 1, 0, -1)
    )
    found = loop(trace, tmp_path)
    assert steps(found["arrival_ns"]) == [0, 5, 7]
    assert steps(found["finished_ns"]) == [2, 7, 9]
    assert steps(found["trace_arrival_ns"]) == [0, 1, 2]
    assert steps(loop(trace, tmp_path, closed_loop=False)["finished_ns"]) == [2, 3, 4]


def test_subagents_fork_and_join(tmp_path: Path) -> None:
    """Call 0 forks into 1 and 2, of 5 and 2 steps; call 3 comes a step after both and call 0."""
    trace = sessions_of(
        (0, 1, 1, 0, 0, -1, -1, -1),
        (1, 1, 5, 0, 1, 0, 1, 3),
        (1, 1, 2, 0, 2, 0, 2, 3),
        (1, 1, 1, 0, 3, 0, 1, -1),
    )
    found = loop(trace, tmp_path)
    assert steps(found["arrival_ns"]) == [0, 2, 3, 8]
    assert steps(found["finished_ns"]) == [1, 7, 5, 9]


def test_an_unknown_think_time_is_the_recorded_distance_at_least(tmp_path: Path) -> None:
    """Call 1 comes 4 steps after call 0 came, as recorded; call 2 would come 1 step after that, in its 2 steps."""
    trace = sessions_of(
        (0, 1, 2, 0, 0, -1, -1, -1),
        (4, 1, 2, 0, 1, 0, -1, -1),
        (5, 1, 2, 0, 2, 1, -1, -1),
        (8, 1, 1, 0, 3, 2, -1, -1),
    )
    found = loop(trace, tmp_path)
    # Call 3 was recorded 3 steps after call 2, which now comes a step later than it was recorded.
    assert steps(found["arrival_ns"]) == [0, 4, 6, 9]
    slow = loop(trace, tmp_path, cost=f"constant:{5 * STEP_NS}")
    assert steps(slow["arrival_ns"]) == [0, 10, 20, 30], "never before the answer"


def test_a_call_that_is_turned_away_ends_at_once(tmp_path: Path) -> None:
    """Prompts of 70 do not fit into 64 slots. Nobody waits for ever, and they are counted."""
    trace = sessions_of(
        (0, 70, 1, 0, 0, -1, -1, -1),  # whoever waits for it comes 2 steps later
        (1, 70, 1, 0, 1, 0, 2, -1),
        (1, 1, 1, 0, 2, 1, 3, -1),
        (9, 70, 1, 0, 3, 2, -1, -1),  # 8 steps after the call before it came
        (10, 1, 1, 0, 4, 3, -1, -1),  # one step after that
    )
    found = loop(trace, tmp_path)
    assert steps(found["arrival_ns"]) == [0, 2, 5, 13, 14]
    assert steps(found["finished_ns"]) == [None, None, 6, None, 15]
    assert found["summary"]["num_rejected"] == 3
    assert found["summary"]["num_calls_after_rejected"] == 3


def test_a_plan_stops_where_a_single_token_brings_somebody(tmp_path: Path) -> None:
    """Call 0 ends in its prefill. The other request could go on alone, but call 1 comes."""
    trace = sessions_of(
        (0, 1, 1, 0, 0, -1, -1, -1), (0, 1, 9, -1, 0, -1, -1, -1), (0, 1, 1, 0, 1, 0, 0, -1)
    )
    # Steps so short that no timeline row ends among them.
    found = loop(trace, tmp_path, cost="constant:1000")
    assert found["admitted_ns"] == [0, 0, 1000]
    assert found["finished_ns"] == [1000, 9000, 2000]


def test_of_those_that_come_at_one_instant_the_earlier_row_goes_first(tmp_path: Path) -> None:
    """Request 2 comes as recorded when call 0 ends and a timeline row, too; call 1 comes then as well."""
    trace = sessions_of(
        (0, 1, 1, 0, 0, -1, -1, -1), (0, 1, 1, 0, 1, 0, 0, -1), (1, 1, 1, -1, 0, -1, -1, -1)
    )
    found = loop(trace, tmp_path, max_num_seqs=1)
    assert steps(found["arrival_ns"]) == [0, 1, 1]
    assert steps(found["admitted_ns"]) == [0, 1, 2]


class OpenLoopEngine(Engine):
    """Takes the recorded arrivals, come what may."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.queue = WaitingQueue(self.requests, sequence_of)


class SilentEngine(Engine):
    """Tells nobody of an end."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.queue.finish = lambda row, end_ns: None


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (OpenLoopEngine, "request 1 came at 1 ns, before"),
        (SilentEngine, "INV-5: requests .1. of 1"),
    ],
)
def test_engines_that_keep_no_closed_loop_are_found_out(
    engine: type[Engine], words: str, tmp_path: Path
) -> None:
    trace = sessions_of((0, 1, 2, 0, 0, -1, -1, -1), (1 / STEP_NS, 1, 2, 0, 1, 0, 0, -1))
    config = config_of("paged", num_gpu_blocks_override=8, closed_loop=True)
    with pytest.raises(AssertionError, match=words):
        simulate(trace, config, tmp_path, engine_type=engine)


@pytest.mark.parametrize(
    ("num_sessions", "gap", "expected"),
    # Each takes two steps, alone: 20 first calls, one a step, outrun it, and later calls wait as well.
    [(20, 1, (True, 5, 10)), (40, 4, (False, 0, 0))],
)
def test_overload_is_judged_by_those_who_come_as_recorded(
    num_sessions: int, gap: int, expected: tuple[bool, int, int], tmp_path: Path
) -> None:
    """Each session has a second call that thinks for 10,000 steps: it does not stretch the arrivals."""
    first = [(gap * i, 1, 2, i, 0, -1, -1, -1) for i in range(num_sessions)]
    second = [(gap * num_sessions, 1, 2, i, 1, 0, 10_000, -1) for i in range(num_sessions)]
    summary = loop(sessions_of(*first, *second), tmp_path, max_num_seqs=1)["summary"]
    found = [summary[name] for name in ("overloaded", "waiting_at_half", "waiting_at_last_arrival")]
    assert tuple(found) == expected
    assert summary["saturated"] is False
    assert summary["loaded_end_ns"] > 10_000 * STEP_NS, "until nobody will come"


def awaited_of(trace: Trace) -> list[list[int]]:
    """Whom each call waits for, looked up in the session columns."""
    (chunk,) = trace.chunks
    names = ("session", "call", "after_call", "join_call")
    calls = list(zip(*(getattr(chunk.sessions, name).tolist() for name in names), strict=True))
    return [
        [
            row
            for row, (session, number, _, join) in enumerate(calls)
            if session == mine >= 0 and (number == after or join == call)
        ]
        for mine, call, after, _ in calls
    ]


# They find or share what others have computed.
REUSING = ("slots", "vllm-v0", "vllm-v0-prefix-caching")


@pytest.mark.parametrize("policy", ["paged", "static", "contiguous", "vllm-v1", *REUSING])
def test_who_comes_when_and_how_much_is_done(policy: str, costs: list[str], out_dir: Path) -> None:
    """By the definition, whatever the load; and as much is computed as in an open loop."""

    @settings(max_examples=examples(40))
    @given(
        trace=session_traces(with_content=policy in REUSING, most=16),
        config=configs(policy, costs),
    )
    def hold(trace: Trace, config: RunConfig) -> None:
        assume(len(waits(trace).rows))
        summaries = []
        for closed in (False, True):
            config = replace(config, closed_loop=closed)
            summaries.append(simulate(trace, config, out_dir))
        found = pq.read_table(out_dir / "requests.parquet").to_pydict()
        came, recorded = found["arrival_ns"], trace.chunks[0].arrival_ns.tolist()
        # A call that is turned away ends when it comes.
        ended = [
            at if end is None else end for at, end in zip(came, found["finished_ns"], strict=True)
        ]
        think_ns = trace.chunks[0].sessions.think_ns.tolist()
        for row, awaited in enumerate(awaited_of(trace)):
            if not awaited:
                assert came[row] == recorded[row]
                continue
            last_end = max(ended[other] for other in awaited)
            assert came[row] >= last_end, "two calls in flight that are no fork"
            if think_ns[row] >= 0:
                assert came[row] == last_end + think_ns[row]
            else:
                gaps = [came[other] + recorded[row] - recorded[other] for other in awaited]
                assert came[row] == max(last_end, *gaps)
        opened, closed = summaries
        for name in ("num_finished", "num_rejected", "num_clipped", "num_output_tokens"):
            assert opened[name] == closed[name], name
        if policy not in REUSING:
            assert work(opened) == work(closed)

    hold()


def work(summary: dict[str, Any]) -> int:
    """Tokens computed, less those computed again after a preemption."""
    computed = summary["num_prefill_tokens"] + summary["num_decode_tokens"]
    return int(computed - summary["recomputed_tokens"])


@pytest.mark.parametrize(
    "trace",
    [
        generate(
            "chats",
            Mix("fixed:40", output="range:60,0.5", rate=2.0, mean_turns=4, mean_think_s=0.5),
            120,
            seed=3,
        ),
        generate_agents(
            "agents",
            AgentMix(
                "fixed:40",
                output="range:60,0.5",
                tool_result="lognormal:50,1",
                rate=2.0,
                mean_calls=8,
                mean_tool_s=0.3,
                subagent_share=0.3,
            ),
            150,
            seed=5,
        ),
    ],
    ids=lambda trace: trace.name,
)
def test_slower_service_delays_later_turns(trace: Trace, tmp_path: Path) -> None:
    """With room for everybody, a step that takes four times as long delays every call that waits for others."""
    fast, slow = (
        loop(
            trace,
            tmp_path / str(factor),
            cost=f"constant:{factor * STEP_NS}",
            num_gpu_blocks_override=20_000,
            block_size=16,
            max_model_len=131_072,
        )
        for factor in (1, 4)
    )
    waiting = np.array([bool(awaited) for awaited in awaited_of(trace)])
    assert waiting.sum() > 50
    delay_ns = np.array(slow["arrival_ns"]) - np.array(fast["arrival_ns"])
    assert (delay_ns[waiting] > 0).all()
    assert (delay_ns[~waiting] == 0).all()
    assert slow["summary"]["end_ns"] > fast["summary"]["end_ns"]
    assert work(slow["summary"]) == work(fast["summary"])


def test_without_anybody_to_wait_for_there_is_no_closed_loop(tmp_path: Path) -> None:
    trace = trace_of([(0, 1, 1)] * 3)
    words = "--closed-loop needs a trace .* in drawn .synthetic. no call waits for another"
    with pytest.raises(UserError, match=words):
        simulate(trace, config_of("paged", closed_loop=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()
