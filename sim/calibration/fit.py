"""From measured steps to the coefficients of the cost model, and how well they hold.

A fitted step is one sum: a constant, and an amount for one of each total, none negative. Errors
count relative to the step's duration, so that short steps are fitted as well as long ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..cost import SHIFT, TOTALS, CostModel, CostTerm
from .nnls import nnls
from .samples import Floats, Samples

NUM_FOLDS = 5


@dataclass(frozen=True)
class Error:
    """Relative errors of a set of predictions: 0.1 is 10 % of the measured duration."""

    mean: float
    p95: float

    @classmethod
    def of(cls, shares: Floats) -> "Error":
        """Of absolute relative errors; at least one."""
        return cls(float(shares.mean()), float(np.percentile(shares, 95)))


@dataclass(frozen=True)
class Fit:
    """Coefficients in ns, and their errors on the steps they were fitted to (`in_sample`), on steps left out

    of the fit (`cross_validated`), and the device's own differences between repeats (None: no repeats).
    """

    constant_ns: float
    coefficients_ns: tuple[float, ...]
    unmeasured: tuple[str, ...]  # totals that were 0 in all steps, so that their coefficients are, too
    num_points: int
    in_sample: Error
    cross_validated: Error
    noise: Error | None

    def term(self) -> CostTerm:
        """The one term of a fitted cost model."""
        units = [round(value * 2**SHIFT) for value in (self.constant_ns, *self.coefficients_ns)]
        return CostTerm("fitted", units[0], tuple(units[1:]))

    def named_ns(self) -> Mapping[str, float]:
        """Coefficients by total."""
        return dict(zip(TOTALS, self.coefficients_ns, strict=True))


def fit_steps(samples: Samples, seed: int = 0) -> Fit:
    """Fit to all of `samples`, and cross-validate over points in `NUM_FOLDS` folds drawn with `seed`.

    Raises AssertionError for fewer points than folds.
    """
    num_points = len(samples.totals)
    assert num_points >= NUM_FOLDS, f"{num_points} points for {NUM_FOLDS} folds"
    solution = _solve(samples)
    fold = np.random.default_rng(seed).permutation(num_points) % NUM_FOLDS
    held_out = np.empty(num_points)
    for number in range(NUM_FOLDS):
        is_held_out = fold == number
        fitted = _solve(samples.at(np.flatnonzero(~is_held_out)))
        held_out[is_held_out] = _errors(samples.at(np.flatnonzero(is_held_out)), fitted)
    noise = samples.noise()
    used = samples.totals.any(axis=0)
    return Fit(
        constant_ns=float(solution[0]),
        coefficients_ns=tuple(map(float, solution[1:])),
        unmeasured=tuple(name for name, is_used in zip(TOTALS, used, strict=True) if not is_used),
        num_points=num_points,
        in_sample=Error.of(_errors(samples, solution)),
        cross_validated=Error.of(held_out),
        noise=Error.of(noise) if noise.size else None,
    )


def relative_errors(predicted_ns: Floats, measured_ns: Floats) -> Floats:
    """|predicted - measured| as a share of what was measured."""
    return np.abs(predicted_ns - measured_ns) / measured_ns


def _solve(samples: Samples) -> Floats:
    """Constant and coefficients, ns."""
    weights = 1 / samples.typical_ns
    return nnls(_columns(samples) * weights[:, None], np.ones(len(weights)))


def _errors(samples: Samples, solution: Floats) -> Floats:
    return relative_errors(_columns(samples) @ solution, samples.typical_ns)


def _columns(samples: Samples) -> Floats:
    return np.column_stack([np.ones(len(samples.totals)), samples.totals])


def fitted_cost(name: str, fit: Fit, notes: tuple[str, ...]) -> CostModel:
    """The cost model of `fit`, as yet without a record of what it was fitted to."""
    return CostModel(name, calibrated=True, terms=(fit.term(),), notes=notes)
