"""What `describe` measures, by hand, against numpy, and the same chunk by chunk."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from format_cases import jsonl, write
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.traces import (
    Sessions,
    Trace,
    TraceChunk,
    describe,
    describe_file,
    open_trace,
    prefix_hits,
)

S = 10**9


def trace_of(arrivals: list[int], prompts: list[int], cuts: list[int]) -> Trace:
    chunks = []
    for a, b in zip([0, *cuts], [*cuts, len(arrivals)], strict=True):
        if a < b:
            ones = np.ones(b - a, dtype=np.int64)
            chunks.append(TraceChunk(np.array(arrivals[a:b]), np.array(prompts[a:b]), ones, -ones))
    return Trace("t", "any", tuple(chunks))


# Some gaps are of exactly as long as an idle one at least is.
ARRIVALS = st.one_of(st.integers(0, 30 * S), st.sampled_from([0, 5 * S, 10 * S, 20 * S, 30 * S]))


@given(
    rows=st.lists(st.tuples(ARRIVALS, st.integers(1, 5000)), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=3).map(sorted),
)
def test_statistics_are_numpys_wherever_chunks_end(
    rows: list[tuple[int, int]], cuts: list[int]
) -> None:
    arrivals, prompts = sorted(row[0] for row in rows), [row[1] for row in rows]
    summary = describe(trace_of(arrivals, prompts, [min(cut, len(rows)) for cut in cuts]))
    found = summary.prompt
    assert found.mean == pytest.approx(np.mean(prompts))
    assert [found.p50, found.p90, found.p99] == pytest.approx(np.percentile(prompts, [50, 90, 99]))
    assert found.max == max(prompts)
    gaps = np.diff(arrivals)
    assert summary.num_distinct_arrivals == len(set(arrivals))
    assert summary.longest_gap_s == gaps.max(initial=0) / S
    assert summary.num_idle_gaps == (gaps >= 10 * S).sum()
    assert summary.idle_s == pytest.approx(gaps[gaps >= 10 * S].sum() / S)
    if arrivals[0] == arrivals[-1]:
        assert (summary.rate, summary.interarrival_cv, summary.dispersion_1s) == (None,) * 3
        return
    assert summary.rate == pytest.approx(len(gaps) / (gaps.sum() / S))
    assert summary.interarrival_cv == pytest.approx(gaps.std() / gaps.mean(), rel=1e-6, abs=1e-6)
    seconds = [(arrival - arrivals[0]) // S for arrival in arrivals]
    per_second = np.bincount(seconds)
    assert summary.dispersion_1s == pytest.approx(per_second.var() / per_second.mean())


def test_sessions_by_hand() -> None:
    ones = np.ones(6, dtype=np.int64)
    sessions = Sessions(
        session=np.array([4, 4, -1, 4, 9, 4]),
        call=np.array([0, 1, 0, 2, 0, 3]),
        after_call=np.array([-1, 0, -1, 0, -1, 1]),
        think_ns=np.array([-1, 2 * S, -1, 3 * S, -1, -1]),
        join_call=np.array([-1, -1, -1, 3, -1, -1]),
    )
    trace = Trace("t", "any", (TraceChunk(ones, ones, ones, -ones, sessions=sessions),))
    found = describe(trace).sessions
    assert found is not None
    assert (found.num_sessions, found.num_calls, found.max_calls) == (2, 5, 4)
    assert (found.mean_calls, found.num_forks, found.num_joins) == (2.5, 1, 1)
    assert (found.num_think_times, found.mean_think_s) == (2, 2.5)
    alone = replace(trace.chunks[0], sessions=sessions.take(np.array([2, 2, 2, 2, 2, 2])))
    none = describe(Trace("t", "any", (alone,))).sessions
    assert none is not None
    assert (none.num_sessions, none.max_calls, none.mean_think_s) == (0, 0, None)


def test_hits_by_hand(tmp_path: Path) -> None:
    rows = [
        {"timestamp": time, "input_length": length, "output_length": 1, "hash_ids": ids}
        for time, length, ids in (
            (0, 1000, [0, 1]),
            (1, 1000, [0, 1]),  # all of it, the partial last block too
            (2, 1400, [0, 2, 3]),  # the first block
            (3, 1024, [0, 2]),  # both, full ones
            (4, 100, [9]),
        )
    ]
    trace = open_trace(write(tmp_path / "t.jsonl", jsonl(*rows)))
    own, sixteen = prefix_hits(trace, 16)
    assert (own.num_hit_blocks, own.num_blocks) == (2 + 1 + 2, 2 + 2 + 3 + 2 + 1)
    assert (own.num_hit_tokens, own.num_tokens) == (1000 + 512 + 1024, 4524)
    assert (own.block_share, own.token_share) == (0.5, 2536 / 4524)
    # Full blocks of 16 only: 62 of 1000 tokens, 32 of 512, 64 of 1024.
    assert (sixteen.num_hit_blocks, sixteen.num_hit_tokens) == (62 + 32 + 64, 158 * 16)
    assert sixteen.num_blocks == 62 + 62 + 87 + 64 + 6
    assert prefix_hits(trace_of([0], [5], [])) == ()


def test_a_file_is_described_as_the_trace_in_it(tmp_path: Path) -> None:
    rows = [
        {"timestamp": i, "input_length": 5, "output_length": 1, "hash_ids": [i % 3]}
        for i in range(40)
    ]
    mooncake = write(tmp_path / "t.jsonl", jsonl(*rows))
    vidur = "arrived_at,num_prefill_tokens,num_decode_tokens\n" + "1,5,6\n2,7,8\n" * 1
    for path in (mooncake, write(tmp_path / "v.csv", vidur)):
        assert describe_file(path, block_tokens=4) == describe(open_trace(path), 4)


# Figures of the README of the reference data: hit blocks, blocks, hit tokens, tokens.
HITS = {
    "conversation_trace.slice": (40893, 122598, 20929408, 61644461),
    "synthetic_trace.slice": (8233, 34807, 4205791, 17332306),
    "arxiv_mooncake_trace.excerpt": (252, 702, None, None),
}


@pytest.mark.parametrize("name", HITS)
def test_public_hit_figures(shared_dir: Path, name: str) -> None:
    (own,) = prefix_hits(open_trace(shared_dir / f"traces/mooncake/{name}.jsonl"))
    found = (own.num_hit_blocks, own.num_blocks, own.num_hit_tokens, own.num_tokens)
    assert all(f == w for f, w in zip(found, HITS[name], strict=True) if w is not None), found


def test_public_burstiness(shared_dir: Path) -> None:
    summary = describe_file(shared_dir / "traces/azure/AzureLLMInferenceTrace_code.slice.csv")
    assert f"{summary.dispersion_1s:.1f}" == "14.3"
    assert f"{summary.longest_gap_s:.1f}" == "173.5"
