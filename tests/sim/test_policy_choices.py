"""Choices that decide where memory goes, one small case each."""

import dataclasses
from pathlib import Path

import pytest
from allocators import build, sequence
from hand_runs import STEP_NS, run
from random_cases import config_of, trace_of

from kvtwin.sim import simulate


@pytest.mark.parametrize(("fit", "first"), [("first", 0), ("best", 40)])
def test_contiguous_fit(fit: str, first: int) -> None:
    """Holes of 30 at 0, 20 at 40 and 30 at 70; 15 slots are wanted."""
    pool = build("contiguous", 100, fit=fit)
    held = [sequence(row, num, 1) for row, num in enumerate((30, 10, 20, 10))]
    for seq in held:
        assert pool.admit(seq, seq.known, others_running=True)
    pool.free(held[0])
    pool.free(held[2])
    assert pool.free_runs() == [(0, 30), (40, 20), (70, 30)]
    asker = sequence(9, 15, 1)
    assert pool.admit(asker, 15, others_running=True)
    assert pool.runs(asker) == [(first, 15)]


def test_best_fit_takes_the_lower_of_equal_holes() -> None:
    pool = build("contiguous", 40, fit="best")
    held = [sequence(row, 10, 1) for row in range(4)]
    for seq in held:
        assert pool.admit(seq, 10, others_running=True)
    for seq in (held[2], held[0]):
        pool.free(seq)
    asker = sequence(9, 8, 1)
    assert pool.admit(asker, 8, others_running=True)
    assert pool.runs(asker) == [(0, 8)]


@pytest.mark.parametrize(
    ("policy", "num_output_tokens", "asked"),
    [
        ("orca-pow2", 1, 10 + 1),
        ("orca-pow2", 8, 10 + 8),  # a power of two stays what it is
        ("orca-pow2", 9, 10 + 16),
        ("orca-pow2", 25, 10 + 32),  # the paper's example
        ("orca-pow2", 60, 64),  # 10 + 64, cut to max_model_len
        ("orca-oracle", 9, 19),
        ("orca-max", 9, 64),
    ],
)
def test_orca_reservations(policy: str, num_output_tokens: int, asked: int) -> None:
    pool = build(policy, 128, max_model_len=64)
    seq = sequence(0, 10, min(num_output_tokens, 54))
    if num_output_tokens == 60:  # beyond what clipping leaves, as a reservation must not be
        seq.num_output_tokens = 60
    assert pool.admit(seq, 10, others_running=False)
    assert seq.asked_slots == asked
    assert seq.granted_slots == 1 << (asked - 1).bit_length()


def test_scattered_free_slots_count_for_as_long_as_they_last(tmp_path: Path) -> None:
    """Slots 0 to 3 are held by A, 4 and 5 by B; A leaves 2 steps before B, and C comes 10 steps later.

    While A and B run, 2 of 2 free slots are adjacent; with B alone 4 of 6 are, for the two steps of B; then, idle,
    8 of 8 for the 10 steps until the last request is admitted.
    """
    requests = [(0, 4, 1), (0, 1, 3), (13 * STEP_NS, 1, 1)]
    result = run("paged", requests, tmp_path, num_slots=8)
    runs = [(row["largest_free_run_slots"], row["free_run_total_slots"]) for row in result.timeline]
    widths = [(row["end_ns"] - row["start_ns"]) // STEP_NS for row in result.timeline]
    loaded = list(zip(runs, widths, strict=True))[:-1]
    expected = sum(run / free * width for (run, free), width in loaded) / sum(
        width for _, width in loaded
    )
    assert len({run / free for (run, free), _ in loaded}) > 1, loaded
    assert len({width for _, width in loaded}) > 1, loaded
    assert result.summary["largest_free_run_share"] == pytest.approx(expected)


def test_a_request_is_clipped_once_whoever_clips_it(tmp_path: Path) -> None:
    """Rows 0 to 2 were shortened by the generator; the run shortens 0 and 3, and rejects 4 and 2."""
    requests = [(0, 4, 100), (0, 4, 3), (0, 40, 1), (0, 4, 99), (0, 40, 100)]
    trace = dataclasses.replace(trace_of(requests), clipped_rows=(0, 1, 2))
    config = config_of("paged", num_gpu_blocks_override=64, block_size=1, max_model_len=32)
    summary = simulate(trace, config, tmp_path)
    assert summary["num_rejected"] == 2
    assert summary["num_clipped"] == 4
    assert trace.head(2).num_clipped == 2
