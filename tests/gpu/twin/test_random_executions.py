"""Random traces, policies and settings: what is executed is what was simulated, slot for slot."""

from typing import Any

import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from twin_cases import POLICIES, SHAPE, config_of, make_trace

from kvtwin.gpu.twin.backend import open_backend
from kvtwin.gpu.twin.foresight import foresee
from kvtwin.gpu.twin.validate import Depth, validate_decisions
from kvtwin.sim.drive import drive
from kvtwin.traces import Trace

EVERY_STEP = Depth(audit_steps=1, output_steps=3, num_rows=2)


def check(trace: Trace, case: str, changed: dict[str, Any]) -> None:
    foresight = foresee(trace, config_of(case, **changed), drive)
    with open_backend("cpu", "torch") as backend:
        found, _, _ = validate_decisions(foresight, SHAPE, backend, EVERY_STEP, paranoid=False)
    assert found.passed, [*found.findings[:5], *(p for p in found.predictions if not p.passed)]


@given(
    seed=st.integers(0, 10**6),
    case=st.sampled_from(sorted(POLICIES)),
    num=st.integers(1, 20),
    content=st.booleans(),
    span_ns=st.sampled_from([0, 10**7, 10**8, 10**9]),
    block_size=st.sampled_from([1, 3, 8, 16]),
    growth_tokens=st.integers(1, 9),
    fit=st.sampled_from(["first", "best"]),
)
@settings(max_examples=examples(12))
def test_any_execution_is_what_was_simulated(
    seed: int,
    case: str,
    num: int,
    content: bool,
    span_ns: int,
    block_size: int,
    growth_tokens: int,
    fit: str,
) -> None:
    num_slots = 960 if case == "slots" else 400
    changed = {"num_gpu_blocks_override": num_slots // block_size, "block_size": block_size}
    trace = make_trace(seed, num, content, max(span_ns, 1))
    check(trace, case, changed | {"growth_tokens": growth_tokens, "fit": fit})


@pytest.mark.parametrize("seed", [0, 1])
def test_runs_pushed_away_and_back_in_one_step(seed: int) -> None:
    # In the one, compaction packs over the source of an earlier move, and another run moves away
    # from there; in the other, a run returns to where it was.
    check(
        make_trace(seed), "contiguous, compacting", {"fit": "first", "max_num_batched_tokens": 64}
    )
