"""From measured steps to the coefficients of the cost model, and how well they hold.

A fitted step is one sum: a constant, and an amount for one of each total, none negative. Errors
count relative to the step's duration, so that short steps are fitted as well as long ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..cost import SHIFT, TOTALS, CostTerm
from ..fit_record import FitError
from .nnls import nnls
from .samples import Floats, Samples

NUM_FOLDS = 5
_SAME = 1e-6  # of a column's length


@dataclass(frozen=True)
class Fit:
    """Coefficients in ns, and how well they hold.

    Errors are on the steps fitted to (`in_sample`) and on steps left out of the fit
    (`cross_validated`); `noise` is of repeats against their median (None: no repeats).
    `unmeasured`: totals that were 0 in all steps, so that their coefficients are, too. `dependent`:
    totals that follow from others in all steps, so that their cost cannot be told from that of these.
    """

    constant_ns: float
    coefficients_ns: tuple[float, ...]
    unmeasured: tuple[str, ...]
    dependent: tuple[str, ...]
    num_points: int
    in_sample: FitError
    cross_validated: FitError
    noise: FitError | None

    def term(self) -> CostTerm:
        """The one term of a fitted cost model."""
        units = [round(value * 2**SHIFT) for value in (self.constant_ns, *self.coefficients_ns)]
        return CostTerm("fitted", units[0], tuple(units[1:]))

    def notes(self) -> tuple[str, ...]:
        """What a reader of the cost model must know."""
        notes = []
        if self.unmeasured:
            notes.append(f"never measured, so that it costs nothing: {', '.join(self.unmeasured)}")
        if self.dependent:
            notes.append(
                f"not told apart from other totals by the measured steps: {', '.join(self.dependent)}"
            )
        return tuple(notes)

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
    most = samples.totals.max(axis=0).tolist()
    return Fit(
        constant_ns=float(solution[0]),
        coefficients_ns=tuple(map(float, solution[1:])),
        unmeasured=tuple(name for name, value in zip(TOTALS, most, strict=True) if not value),
        dependent=_dependent(_columns(samples)),
        num_points=num_points,
        in_sample=_error(_errors(samples, solution)),
        cross_validated=_error(held_out),
        noise=_error(noise) if noise.size else None,
    )


def predicted_ns(samples: Samples, fit: Fit) -> Floats:
    """What the fit says of each point."""
    predicted: Floats = _columns(samples) @ np.array([fit.constant_ns, *fit.coefficients_ns])
    return predicted


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


def _dependent(columns: Floats) -> tuple[str, ...]:
    """Totals whose columns are sums of multiples of those in front of them, and not 0."""
    norms = np.linalg.norm(columns, axis=0)
    scaled = columns / np.where(norms > 0, norms, 1)
    names = []
    for place, name in enumerate(TOTALS, start=1):
        others, column = scaled[:, :place], scaled[:, place]
        solution = np.linalg.lstsq(others, column, rcond=None)[0]
        if norms[place] > 0 and np.linalg.norm(others @ solution - column) < _SAME:
            names.append(name)
    return tuple(names)


def _error(shares: Floats) -> FitError:
    return FitError(float(shares.mean()), float(np.percentile(shares, 95)))
