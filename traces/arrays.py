"""Columns: numpy arrays of integers that nobody can write to."""

from fractions import Fraction
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
Integer = TypeVar("Integer", np.int32, np.int64, np.uint64)


def read_only(column: npt.ArrayLike, dtype: type[Integer]) -> npt.NDArray[Integer]:
    """A view of `column` as `dtype` that cannot be written. Asserts that no value changes."""
    array = np.asarray(column)
    assert array.size == 0 or array.dtype.kind in "iu", f"a column of {array.dtype}, not integers"
    kept = array.astype(dtype, copy=False)
    assert kept.dtype == array.dtype or (kept == array).all(), f"a value outside {kept.dtype}"
    view = kept.view()
    view.flags.writeable = False
    return view


def take_ragged(offsets: Int64, rows: Int64) -> tuple[Int64, Int64]:
    """For lists kept one behind the other: the offsets of those of `rows`, and which elements to take."""
    lengths = np.diff(offsets)[rows]
    new_offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    within = np.arange(new_offsets[-1]) - np.repeat(new_offsets[:-1], lengths)
    return new_offsets, np.repeat(offsets[rows], lengths) + within


def times(values: Int64, ratio: Fraction) -> Int64:
    """`values` times `ratio`, exactly, rounded once, half up."""
    multiplier, divisor = ratio.as_integer_ratio()
    half = divisor // 2
    return np.array(
        [(value * multiplier + half) // divisor for value in values.tolist()], dtype=np.int64
    )
