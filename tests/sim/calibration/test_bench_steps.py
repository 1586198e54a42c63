"""Step times of a server found from its clients' token times: those of a simulated one come back."""

from pathlib import Path

import numpy as np
import pytest
from bench_files import CONSTANT_NS, KNOWN_NS, measured

from kvtwin.sim.calibration.bench_steps import bench_steps
from kvtwin.sim.calibration.fit import fit_steps
from kvtwin.sim.cost import TOTALS
from kvtwin.traces.formats.vllm_bench import BenchRequest, read_bench_requests

# Of a step, over what the bench's steps are like: jitter moves the small coefficients more than that.
TOLERANCE = {"num_prefill_tokens": 0.03, "decode_context_slots": 0.05, "num_decode_tokens": 0.15}


@pytest.mark.parametrize(
    ("rate", "budget"), [(4.0, 8192), (None, 8192), (100.0, 512)], ids=["open", "full", "chunks"]
)
def test_coefficients_come_back_exactly(rate: float | None, budget: int, tmp_path: Path) -> None:
    """Where prompts may have been computed in parts, those steps are left out, and counted."""
    requests, skipped = read_bench_requests(measured(tmp_path, rate, budget, 0.0))
    assert not skipped
    samples, unknown = bench_steps(requests, budget)
    assert samples is not None
    fit = fit_steps(samples)
    expected = {name: KNOWN_NS.get(name, 0) for name in TOTALS}
    assert fit.named_ns() == pytest.approx(expected, rel=1e-3, abs=1e-3)
    assert fit.constant_ns == pytest.approx(CONSTANT_NS, rel=1e-4)
    assert fit.cross_validated.p95 < 1e-4
    parts = sum(num for why, num in unknown.items() if "part of a prompt" in why)
    assert (parts > 20) == (budget == 512)
    assert len(samples.totals) > 1000


def test_the_budget_matters(tmp_path: Path) -> None:
    """Told of a larger budget than the engine had, parts pass for whole prompts, and the fit is off."""
    requests, _ = read_bench_requests(measured(tmp_path, 100.0, 512, 0.0))
    samples, _ = bench_steps(requests, 1 << 20)
    assert samples is not None
    assert fit_steps(samples).cross_validated.p95 > 1e-3


@pytest.mark.parametrize("rate", [8.0, None])
def test_coefficients_come_back_through_jitter(rate: float | None, tmp_path: Path) -> None:
    """Tokens reach their clients up to 1 ms late, of steps of 8 ms and more."""
    requests, _ = read_bench_requests(measured(tmp_path, rate, 8192, 0.001, num_requests=300))
    samples, _ = bench_steps(requests, 8192)
    assert samples is not None
    fit = fit_steps(samples)
    assert fit.constant_ns == pytest.approx(CONSTANT_NS, rel=0.02)
    for name, tolerance in TOLERANCE.items():
        assert fit.named_ns()[name] == pytest.approx(KNOWN_NS[name], rel=tolerance), name


def request(start: int, prompt: int, output: int, *pieces: int) -> BenchRequest:
    return BenchRequest(start, prompt, output, np.array(pieces, dtype=np.int64))


def test_steps_by_hand() -> None:
    """A decodes alone, then B's prompt of 10 joins it, then both decode. Tokens come up to 2 ns apart."""
    a = request(0, 5, 4, 100, 200, 350, 460)
    b = request(205, 10, 2, 352, 462)
    samples, unknown = bench_steps([a, b], 8192)
    assert samples is not None
    names = {name: samples.totals[:, place].tolist() for place, name in enumerate(TOTALS)}
    assert names == {
        "num_prefill_tokens": [0, 10, 0],
        "prefill_pairs": [0, 55, 0],
        "prefill_context_slots": [0, 10, 0],
        "num_decode_tokens": [1, 1, 2],
        "decode_context_slots": [6, 7, 8 + 11],
        "moved_slots": [0, 0, 0],
    }
    assert samples.durations_ns[:, 0].tolist() == [100, 151, 110]
    assert sum(unknown.values()) == 1


def test_a_sequence_that_got_no_token_spoils_its_steps() -> None:
    a = request(0, 5, 6, 100, 200, 300, 400, 500, 600)
    b = request(0, 5, 5, 100, 200, 400, 500, 600)  # nothing at 300
    samples, unknown = bench_steps([a, b], 8192)
    assert samples is not None
    assert len(samples.totals) == 3
    assert {why.split(":")[0]: num for why, num in unknown.items()} == {
        "first step behind an idle engine": 1,
        "a sequence got no token": 2,
    }


def test_a_prompt_behind_the_rest_of_another_is_cut_too() -> None:
    """A budget of 11, 1 for a decode: B's 15 tokens are 10 and 5, C's 8 are 5 and 3. Two steps are sure."""
    a = request(0, 5, 6, 100, 200, 300, 400, 500, 600)
    b = request(150, 15, 1, 400)
    c = request(160, 8, 1, 500)
    samples, unknown = bench_steps([a, b, c], 11)
    assert samples is not None
    assert samples.totals[:, TOTALS.index("decode_context_slots")].tolist() == [6, 10]
    assert sum(num for why, num in unknown.items() if "part of a prompt" in why) == 3


def test_an_idle_engine_parts_the_steps() -> None:
    requests = [request(0, 5, 2, 100, 200), request(900, 5, 3, 1000, 1100, 1200)]
    samples, unknown = bench_steps(requests, 8192)
    assert samples is not None
    assert samples.durations_ns[:, 0].tolist() == [100, 100, 100]
    assert sum(unknown.values()) == 2


def test_nothing_known() -> None:
    samples, unknown = bench_steps([request(0, 5, 1, 100)], 8192)
    assert samples is None
    assert sum(unknown.values()) == 1
    assert bench_steps([], 8192) == (None, {})
