"""A whole file fitted: interruptions are left out and counted, and the record says what was seen."""

import json
from pathlib import Path

import pytest
from bench_files import CONSTANT_NS, measured

from kvtwin.sim.calibration.bench_fit import BenchFit, fit_bench
from kvtwin.sim.cost import TOTALS
from kvtwin.traces import UserError


def fit(path: Path) -> BenchFit:
    return fit_bench(
        path,
        model="Llama-3.1-8B",
        device="an L4",
        max_num_batched_tokens=8192,
        source="kvtwin calibrate",
        date="2026-01-02",
    )


def test_interruptions_are_left_out(tmp_path: Path) -> None:
    """Every hundredth gap of a lone sequence is a second longer: no cost of a step."""
    path = measured(tmp_path, 0.001, 8192, 0.0, num_requests=6)
    raw = json.loads(path.read_text())
    num_paused = 0
    for gaps in raw["itls"]:
        for place in range(50, len(gaps), 100):
            gaps[place] += 1.0
            num_paused += 1
    assert num_paused > 5
    path.write_text(json.dumps(raw))
    made = fit(path)
    assert made.unknown["far from a first fit"] == num_paused
    # A lone sequence: a constant, a decode and its context are one line.
    step = [0] * len(TOTALS)
    step[TOTALS.index("num_decode_tokens")] = 1
    step[TOTALS.index("decode_context_slots")] = 300
    expected_ns = CONSTANT_NS + 20_000 + 90 * 300
    assert made.cost.step_ns(tuple(step)) == pytest.approx(expected_ns, rel=1e-4)


def test_the_record_says_what_was_seen(tmp_path: Path) -> None:
    made = fit(measured(tmp_path, 4.0, 8192, 0.0))
    record = made.cost.fit
    assert record is not None
    assert made.cost.calibrated
    assert (record.model, record.device, record.backend) == ("Llama-3.1-8B", "an L4", "served")
    assert record.num_layers is record.head_dim is record.block_size is record.noise is None
    assert record.num_points == made.fit.num_points > 1000
    assert "server, sampling and transport are in them" in made.cost.notes[0]


def test_too_little_is_refused(tmp_path: Path) -> None:
    path = measured(tmp_path, 4.0, 8192, 0.0, num_requests=1)
    raw = json.loads(path.read_text())
    raw["itls"][0] = raw["itls"][0][:20]
    path.write_text(json.dumps(raw))
    with pytest.raises(UserError, match=r"at least 50 are needed; left out: 1 x first step"):
        fit(path)
