"""Fitted step times: known coefficients come back, and errors are what was left out, not what was fitted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.sim.calibration.fit import NUM_FOLDS, fit_steps
from kvtwin.sim.calibration.samples import Samples
from kvtwin.sim.cost import SHIFT, TOTALS, CostModel

MOST = np.array([512, 100_000, 4096, 64, 30_000, 2048])


def drawn_totals(num_points: int, seed: int) -> np.ndarray:
    """Steps of which about half have prefills and half have decodes."""
    generator = np.random.default_rng(seed)
    totals = generator.integers(1, MOST + 1, (num_points, len(TOTALS)))
    totals[generator.random(num_points) < 0.5, :3] = 0
    totals[generator.random(num_points) < 0.5, 3:5] = 0
    totals[generator.random(num_points) < 0.7, 5] = 0
    return totals


def timed(totals: np.ndarray, truth: np.ndarray) -> np.ndarray:
    return truth[0] + totals @ truth[1:]


@given(
    truth=st.tuples(
        st.integers(10**4, 10**7), *(st.sampled_from([0, 3, 200, 5000]) for _ in TOTALS)
    ),
    seed=st.integers(0, 50),
)
def test_known_coefficients_come_back(truth: tuple[int, ...], seed: int) -> None:
    totals = drawn_totals(60, seed)
    durations_ns = timed(totals, np.array(truth))
    fit = fit_steps(Samples(totals, durations_ns[:, None]))
    np.testing.assert_allclose(
        [fit.constant_ns, *fit.coefficients_ns], truth, rtol=1e-6, atol=durations_ns.min() * 1e-9
    )
    assert fit.cross_validated.p95 < 1e-6
    assert fit.noise is None
    # The file's integers say the same, to their last place.
    cost = CostModel("fit", True, (fit.term(),))
    for step, duration_ns in zip(totals.tolist(), durations_ns.tolist(), strict=True):
        assert cost.step_ns(tuple(step)) == pytest.approx(duration_ns, rel=1e-6, abs=1)


def test_noise_is_the_device_against_itself() -> None:
    """Repeats of 100, 100 and 130: they differ from their median by 0, 0 and 30 %."""
    totals = drawn_totals(20, 1)
    durations_ns = np.tile([100, 100, 130], (20, 1))
    noise = fit_steps(Samples(totals, durations_ns)).noise
    assert noise is not None
    assert noise.mean == pytest.approx(0.1)
    assert noise.p95 == pytest.approx(0.3)


def test_what_is_fitted_to_noise_shows_only_in_cross_validation() -> None:
    """Few steps whose durations have nothing to do with what they did."""
    generator = np.random.default_rng(5)
    totals = drawn_totals(14, 5)
    durations_ns = generator.integers(10**5, 10**7, (14, 1))
    fit = fit_steps(Samples(totals, durations_ns))
    assert fit.cross_validated.mean > 1.5 * fit.in_sample.mean


def test_each_point_is_left_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvtwin.sim.calibration import fit as module

    fitted: list[np.ndarray] = []
    solve = module._solve

    def watched(samples: Samples) -> np.ndarray:
        fitted.append(samples.totals[:, 0])
        return solve(samples)

    monkeypatch.setattr(module, "_solve", watched)
    totals = drawn_totals(23, 2)
    totals[:, 0] = np.arange(23)
    fit_steps(Samples(totals, np.full((23, 1), 1000)))
    whole, *rest = fitted
    assert whole.tolist() == list(range(23))
    left_out = [set(range(23)) - set(numbers.tolist()) for numbers in rest]
    assert len(left_out) == NUM_FOLDS
    assert sorted(number for numbers in left_out for number in numbers) == list(range(23))


def test_what_was_never_measured_is_named() -> None:
    totals = drawn_totals(20, 3)
    totals[:, 5] = 0
    fit = fit_steps(Samples(totals, timed(totals, np.arange(1, 8) * 1000)[:, None]))
    assert fit.unmeasured == ("moved_slots",)
    assert fit.coefficients_ns[5] == 0


def test_units() -> None:
    """2**-20 ns, rounded: the unit of a coefficients file."""
    totals = np.eye(len(TOTALS), dtype=np.int64)[[0, 1, 2, 3, 4, 5, 0, 1]] * 10
    totals[6:] *= 2
    truth = np.array([1000, 100, 200, 300.5, 400, 500, 600])
    fit = fit_steps(Samples(totals, timed(totals, truth).astype(np.int64)[:, None]))
    assert fit.term().coefficients[2] == pytest.approx(300.5 * 2**SHIFT, rel=1e-6)
    assert fit.term().coefficients[3] == pytest.approx(400 << SHIFT, rel=1e-6)
