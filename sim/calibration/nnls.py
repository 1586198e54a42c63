"""Least squares with coefficients that are not negative."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Of the gradient, relative to its largest possible entry: below, a column has nothing to add.
_NOTHING = 1e-10
_MAX_ROUNDS_PER_COLUMN = 30


def nnls(matrix: Floats, target: Floats) -> Floats:
    """x >= 0 that minimises |matrix x - target|: Lawson and Hanson's active set.

    Source: Lawson and Hanson, Solving Least Squares Problems, chapter 23. `matrix` [rows, columns],
    `target` [rows]; columns may be of any magnitude, zero or dependent. A column that the rest
    makes superfluous gets 0.
    """
    norms = np.linalg.norm(matrix, axis=0)
    scales = np.where(norms > 0, norms, 1.0)
    scaled = matrix / scales
    num_columns = matrix.shape[1]
    x = np.zeros(num_columns)
    is_used = np.zeros(num_columns, dtype=bool)
    least_gain = _NOTHING * max(float(np.linalg.norm(target)), np.finfo(float).tiny)
    for _ in range(_MAX_ROUNDS_PER_COLUMN * num_columns):
        gain = scaled.T @ (target - scaled @ x)
        gain[is_used] = -np.inf
        if num_columns == 0 or gain.max() <= least_gain:
            return x / scales
        entered = int(gain.argmax())
        is_used[entered] = True
        while True:
            best = np.zeros(num_columns)
            best[is_used] = np.linalg.lstsq(scaled[:, is_used], target, rcond=None)[0]
            falls = is_used & (best <= 0)
            if not falls.any():
                break
            # As far towards the best as all stay at 0 or above; who gets there leaves.
            shares = x[falls] / (x[falls] - best[falls]).clip(min=np.finfo(float).tiny)
            x += min(float(shares.min()), 1.0) * (best - x)
            is_used &= x > _NOTHING * x.max(initial=0.0)
            x[~is_used] = 0.0
        x = best
        if not is_used[entered]:
            # Rounding made it look useful; it would enter and leave for ever.
            return x / scales
    raise AssertionError(f"no end after {_MAX_ROUNDS_PER_COLUMN * num_columns} rounds")
