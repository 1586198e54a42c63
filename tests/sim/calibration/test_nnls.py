"""Non-negative least squares against all subsets of the columns, and against its own conditions."""

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvtwin.sim.calibration.nnls import nnls

Floats = npt.NDArray[np.float64]


@st.composite
def problems(draw: st.DrawFn) -> tuple[Floats, Floats]:
    """Up to 5 columns, often dependent or zero, of magnitudes from 1e-6 to 1e6."""
    shape = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    entries = st.integers(-3, 3) | st.floats(-3, 3).map(lambda x: round(x, 2))
    matrix = draw(arrays(np.float64, shape, elements=entries))
    target = draw(arrays(np.float64, shape[0], elements=entries))
    exponents = draw(arrays(np.int64, shape[1], elements=st.integers(-6, 6)))
    return matrix * 10.0**exponents, target


def least_residual(matrix: Floats, target: Floats) -> float:
    """Of every subset of the columns, solved without the condition, the best that keeps it."""
    norms = np.linalg.norm(matrix, axis=0)
    scaled = matrix / np.where(norms > 0, norms, 1.0)
    least = float(np.linalg.norm(target))
    for num in range(1, matrix.shape[1] + 1):
        for columns in combinations(range(matrix.shape[1]), num):
            chosen = scaled[:, columns]
            solution = np.linalg.lstsq(chosen, target, rcond=None)[0]
            if (solution >= 0).all():
                least = min(least, float(np.linalg.norm(chosen @ solution - target)))
    return least


@given(problem=problems())
def test_no_subset_of_the_columns_does_better(problem: tuple[Floats, Floats]) -> None:
    matrix, target = problem
    solution = nnls(matrix, target)
    assert (solution >= 0).all()
    residual = float(np.linalg.norm(matrix @ solution - target))
    assert residual <= least_residual(matrix, target) + 1e-7 * (1 + np.linalg.norm(target))


def test_by_hand() -> None:
    """Least squares alone gives (3, -1); without the second column the first is the mean, 4/3."""
    matrix = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 3.0]])
    target = np.array([2.0, 2.0, 0.0])
    assert np.linalg.lstsq(matrix, target, rcond=None)[0].round(9).tolist() == [3.0, -1.0]
    np.testing.assert_allclose(nnls(matrix, target), [4 / 3, 0.0], atol=1e-12)


@pytest.mark.parametrize(
    ("matrix", "target", "solution"),
    [
        # Rows 1 and 2 ask for 4x + 2y = 2.5 together, row 3 for 4x = 1; the third column would only add to errors.
        ([[4, 2, 1], [4, 2, 0], [4, 0, 2]], [2, 3, 1], [0.25, 0.75, 0]),
        # 2z = 1.5 of rows 1 and 2 together, then 3y = 5 - 0.75.
        ([[1, 0, 2], [2, 0, 2], [4, 3, 1]], [2, 1, 5], [0, 17 / 12, 0.75]),
    ],
)
def test_a_column_that_entered_leaves_again(
    matrix: list[list[int]], target: list[int], solution: list[float]
) -> None:
    found = nnls(np.array(matrix, dtype=float), np.array(target, dtype=float))
    np.testing.assert_allclose(found, solution, atol=1e-12)


def test_nothing_to_add_is_zero() -> None:
    assert nnls(np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([-1.0, -1.0])).tolist() == [0.0, 0.0]
