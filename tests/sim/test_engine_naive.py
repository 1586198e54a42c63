"""Two engines of one rule book, with shortcuts and without, write the same files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from allocators import ALLOCATORS
from example_counts import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from naive_engine import NaiveEngine
from random_cases import config_of, configs, run_files, session_traces, trace_of, traces

from kvtwin.sim import RunConfig, simulate
from kvtwin.traces import Trace, waits

POLICIES = [*ALLOCATORS, "uneven_policy:Uneven"]


def assert_same_run(
    trace: Trace, config: RunConfig, out_dir: Path, **options: bool
) -> dict[str, Any]:
    """Run both engines; return the summary."""
    fast_dir, naive_dir = (
        out_dir / f"{kind}{sorted(options.items())}" for kind in ("fast", "naive")
    )
    summary = simulate(trace, config, fast_dir, **options)
    simulate(trace, config, naive_dir, engine_type=NaiveEngine, **options)
    fast, naive = run_files(fast_dir), run_files(naive_dir)
    assert fast.keys() == naive.keys()
    different = [name for name in fast if fast[name] != naive[name]]
    assert not different, f"{different} differ between the engines"
    return summary


@pytest.mark.parametrize("policy", POLICIES)
def test_both_engines_write_the_same_run(policy: str, costs: list[str], out_dir: Path) -> None:
    # Growths ahead of time, and doing without them where a pool runs out, are most of the shortcuts.
    @settings(max_examples=examples(200 if policy == "paged" else 60))
    @given(
        trace=traces(with_content=policy == "slots"),
        config=configs(policy, costs),
        snapshots=st.booleans(),
        decisions=st.sampled_from([False, False, True]),
    )
    def same(trace: Trace, config: RunConfig, snapshots: bool, decisions: bool) -> None:
        assert_same_run(trace, config, out_dir, snapshots=snapshots, decisions=decisions)

    same()


@pytest.mark.parametrize("policy", POLICIES)
def test_both_engines_agree_in_a_closed_loop(policy: str, costs: list[str], out_dir: Path) -> None:
    @settings(max_examples=examples(60 if policy == "paged" else 25))
    @given(
        trace=session_traces(with_content=policy == "slots"),
        config=configs(policy, costs),
        decisions=st.sampled_from([False, False, True]),
    )
    def same(trace: Trace, config: RunConfig, decisions: bool) -> None:
        assume(len(waits(trace).rows))
        assert_same_run(trace, replace(config, closed_loop=True), out_dir, decisions=decisions)

    same()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", ["saturated", "bursts", "logged"])
def test_both_engines_agree_on_many_requests(
    policy: str, kind: str, costs: list[str], out_dir: Path
) -> None:
    """Long enough for a timeline to be joined in pairs, for idle times, for many preemptions."""
    rng = np.random.default_rng(7)
    gaps_ns = rng.integers(0, 600_000_000, 300) * (rng.random(300) < 0.2) * (kind != "saturated")
    lengths = rng.integers(1, 90, (300, 2))
    requests = list(zip(np.cumsum(gaps_ns).tolist(), *lengths.T.tolist(), strict=True))
    streams, known = rng.integers(0, 9, 300).tolist(), rng.integers(1, lengths[:, 0] + 1).tolist()
    contents = [((stream, 0, num),) for stream, num in zip(streams, known, strict=True)]
    trace = trace_of(requests, contents)
    config = config_of(
        policy,
        num_gpu_blocks_override=280 if kind == "logged" else 70,
        block_size=2 if kind == "logged" else 8,
        max_model_len=150,
        max_num_seqs=4 if policy == "slots" else 12,
        max_num_batched_tokens=64,
        watermark=0.03,
        compaction=kind == "bursts",
        fit="best" if kind == "bursts" else "first",
        cost=next(cost for cost in costs if "crossing" in cost),
    )
    summary = assert_same_run(
        trace, config, out_dir, snapshots=kind == "bursts", decisions=kind == "logged"
    )
    assert summary["num_finished"] + summary["num_rejected"] == 300
    assert summary["num_steps"] > 1000
    assert (summary["hit_tokens"] > 100) == (policy == "slots")
