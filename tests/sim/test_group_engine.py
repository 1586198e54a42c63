"""The engine of groups and a naive one, which knows every slot's content, write the same files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_groups import NaiveGroups
from random_cases import closed_if_possible, config_of, run_files, session_traces, trace_of, traces

from kvtwin.sim import RunConfig, simulate
from kvtwin.traces import Trace

BYTES_PER_TOKEN = 131_072  # of llama-3.1-8b
POLICIES = ("vllm-v0", "vllm-v0-prefix-caching")


@st.composite
def group_configs(draw: st.DrawFn, costs: list[str]) -> RunConfig:
    """Samples, beams or neither, in pools that run out; a host of any size; a link that keeps up or is waited for."""
    many = draw(
        st.sampled_from(
            [{}, {"num_samples": 2}, {"num_samples": 4}, {"beam_width": 2}, {"beam_width": 4}]
        )
    )
    host_slots = draw(st.sampled_from([0, 20, 100, 1000]))
    max_num_seqs = draw(st.integers(4, 16))
    return config_of(
        draw(st.sampled_from(POLICIES)),
        block_size=draw(st.sampled_from([1, 2, 3, 4])),
        num_gpu_blocks_override=draw(st.integers(12, 50)),
        max_model_len=30,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.integers(0, 30)),
        watermark=draw(st.sampled_from([None, 0.0, 0.1])),
        cost=draw(st.sampled_from(costs)),
        **many,
        sample_lengths=draw(st.sampled_from(["independent", "equal"])),
        preemption_mode=draw(st.sampled_from(["auto", "auto", "recompute", "swap"])),
        swap_space=host_slots * BYTES_PER_TOKEN / 2**30,
        swap_copy_ns=draw(st.sampled_from([0, 1000, 100_000, 3_000_000])),
        seed=draw(st.integers(0, 3)),
    )


def assert_same_run(
    trace: Trace, config: RunConfig, out_dir: Path, **options: bool
) -> dict[str, Any]:
    fast_dir, naive_dir = (
        out_dir / f"{kind}{sorted(options.items())}" for kind in ("fast", "naive")
    )
    summary = simulate(trace, config, fast_dir, paranoid=True, **options)
    simulate(trace, config, naive_dir, engine_type=NaiveGroups, **options)
    fast, naive = run_files(fast_dir), run_files(naive_dir)
    names = ("requests.parquet", "run.json", "timeline.parquet")
    for name in names[: 3 if "run.json" in fast else 2]:
        assert fast[name] == naive[name], f"{name} differs between the engines"
    assert fast.keys() == naive.keys()
    different = [name for name in fast if fast[name] != naive[name]]
    assert not different, f"{different} differ between the engines"
    return summary


def test_both_engines_write_the_same_run(costs: list[str], out_dir: Path) -> None:
    @settings(max_examples=examples(120))
    @given(
        trace=traces(most=12, longest=14, with_content=True),
        config=group_configs(costs),
        snapshots=st.booleans(),
        decisions=st.booleans(),
    )
    def same(trace: Trace, config: RunConfig, snapshots: bool, decisions: bool) -> None:
        assert_same_run(trace, config, out_dir, snapshots=snapshots, decisions=decisions)

    same()


def test_both_engines_write_the_same_run_in_a_closed_loop(costs: list[str], out_dir: Path) -> None:
    """Requests come in another order than that of their rows."""

    @settings(max_examples=examples(60))
    @given(
        trace=session_traces(longest=(3, 14), most=12, with_content=True),
        config=group_configs(costs),
    )
    def same(trace: Trace, config: RunConfig) -> None:
        assert_same_run(trace, closed_if_possible(config, trace), out_dir, decisions=True)

    same()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("fields", "happened"),
    [
        ({"num_samples": 3}, {"num_groups_out", "num_copied_blocks", "waited_ns"}),
        ({"beam_width": 3}, {"num_groups_out", "num_copied_blocks", "waited_ns"}),
        (
            {"num_samples": 3, "swap_space": 20 * BYTES_PER_TOKEN / 2**30},
            {"num_groups_out", "num_recomputed_for_want_of_host", "recomputed_tokens"},
        ),
        (
            {"beam_width": 3, "preemption_mode": "recompute"},
            {"recomputed_tokens", "num_copied_blocks"},
        ),
        ({"preemption_mode": "swap", "swap_copy_ns": 1_000_000}, {"num_groups_out", "waited_ns"}),
        ({}, {"recomputed_tokens"}),
    ],
    ids=["samples", "beams", "small host", "beams recomputed", "single swapped", "single"],
)
def test_both_engines_agree_under_pressure(
    policy: str, fields: dict[str, Any], happened: set[str], out_dir: Path
) -> None:
    """What is said to happen does; bursts, idle times, and a pool for about three requests, some of which are alike."""
    rng = np.random.default_rng(3)
    gaps_ns = rng.integers(0, 400_000_000, 60) * (rng.random(60) < 0.2)
    lengths = list(zip(np.cumsum(gaps_ns), *rng.integers(1, 30, (2, 60)), strict=True))
    requests = [(int(at), int(prompt), int(output)) for at, prompt, output in lengths]
    shared = rng.integers(0, 2, 60), rng.integers(1, 60, 60)
    known = [
        ((int(stream), 0, min(int(num), prompt + output)),)
        for stream, num, (_, prompt, output) in zip(*shared, requests, strict=True)
    ]
    trace = trace_of(requests, known)
    config = config_of(
        policy,
        **{"cost": "roofline", "swap_space": 1.0} | fields,
        num_gpu_blocks_override=60,
        block_size=4,
        max_model_len=60,
        max_num_seqs=30,
        max_num_batched_tokens=60,
    )
    summary = assert_same_run(trace, config, out_dir, snapshots=True, decisions=True)
    assert summary["num_finished"] > 50
    counters = {**summary, **summary["sharing"], **summary["swapping"]}
    assert {name for name in happened if counters[name] > 0} == happened
    assert (summary["hit_tokens"] > 100) == (policy == POLICIES[1])
    preempted = counters["recomputed_tokens"] + counters["num_groups_out"]
    assert (preempted > 0) == (summary["preemptions"] > 0)
