"""INV-1 to INV-8 on random traces, watched step by step."""

import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from allocators import ALLOCATORS, cached_slots, free_slots
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import closed_if_possible, configs, run_files, session_traces, traces
from watched_engine import OneStepExecutor, UnevenExecutor, WatchedEngine

from kvtwin.sim import RunConfig, simulate
from kvtwin.sim.engine import Engine
from kvtwin.sim.executor import CostExecutor
from kvtwin.traces import Trace

# The package exports the function under the name of its module.
SIMULATE_MODULE = sys.modules["kvtwin.sim.simulate"]


def simulate_by(
    executor: type[CostExecutor], *arguments: object, **options: object
) -> dict[str, object]:
    with patch.object(SIMULATE_MODULE, "CostExecutor", executor):
        return simulate(*arguments, **options)


@pytest.mark.parametrize("policy", ALLOCATORS)
def test_invariants_hold_in_every_step(policy: str, costs: list[str], out_dir: Path) -> None:
    @settings(max_examples=examples(25))
    @given(
        trace=st.one_of(traces(most=12, with_content=policy == "slots"), session_traces(most=12)),
        config=configs(policy, costs),
    )
    def hold(trace: Trace, config: RunConfig) -> None:
        config = closed_if_possible(config, trace)
        engines = []

        def watched(*arguments: object) -> Engine:
            engines.append(WatchedEngine(*arguments))
            return engines[0]

        summary = simulate_by(
            OneStepExecutor,
            trace,
            config,
            out_dir,
            engine_type=watched,
            paranoid=True,
            decisions=True,
        )
        (engine,) = engines
        table = engine.requests
        # INV-5: finished or rejected with both numbers.
        assert summary["num_finished"] + summary["num_rejected"] == trace.num_requests
        rejected = {rejection.row for rejection in table.rejections}
        assert sorted([*table.accepted, *rejected]) == list(range(trace.num_requests))
        for rejection in table.rejections:
            assert rejection.value > rejection.limit or "not below" in rejection.reason
        for row in table.accepted:
            # INV-4: after its last preemption, each of its E positions was found in the pool or computed, once.
            assert (
                engine.computed[row]
                == table.num_prompt_tokens[row] + table.num_output_tokens[row] - 1
            )
            assert (
                table.arrival_ns[row]
                <= table.admitted_ns[row]
                < table.first_token_ns[row]
                <= table.finished_ns[row]
                <= summary["end_ns"]
            )
        for row in rejected:
            assert table.admitted_ns[row] == table.finished_ns[row] == -1
        # INV-8
        allocator = engine.allocator
        unheld = free_slots(allocator) | cached_slots(allocator)
        assert unheld == set(range(allocator.num_slots))
        assert sum(summary["shares"].values()) == pytest.approx(1, abs=1e-12)  # INV-1

    hold()


@pytest.mark.parametrize("policy", ALLOCATORS)
def test_any_part_of_a_plan_may_be_carried_out(
    policy: str, costs: list[str], out_dir: Path
) -> None:
    """Executors may stop early; the same things happen at the same times. Twice the same is INV-6."""

    @settings(max_examples=examples(25))
    @given(
        trace=st.one_of(traces(with_content=policy == "slots"), session_traces()),
        config=configs(policy, costs),
    )
    def same(trace: Trace, config: RunConfig) -> None:
        config = closed_if_possible(config, trace)
        runs = []
        for number, executor in enumerate(
            (CostExecutor, CostExecutor, OneStepExecutor, UnevenExecutor)
        ):
            directory = out_dir / str(number)
            simulate_by(
                executor, trace, config, directory, snapshots=True, paranoid=number % 2 == 1
            )
            runs.append(run_files(directory))
        assert runs[1] == runs[0], "INV-6: the same run, twice"
        assert runs[2] == runs[0], "one step at a time"
        assert runs[3] == runs[0], "some steps at a time"

    same()
