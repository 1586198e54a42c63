"""Measured against predicted durations of an execution's steps."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from ..definitions import NS_PER_MS
from ..parts import OUTLINE

MEASURED_COLOUR = "#0072B2"
REPEAT_COLOUR = "#E69F00"
# Each step of a long run would be a thousand points on top of each other, and most of a page's bytes.
MOST_POINTS = 4000
# Ratio of an axis' ends up to which 2 and 5 are marked beside powers of ten.
MOST_MARKED = 100


def draw(policy: str, steps: pd.DataFrame, ax: Axes) -> None:
    """A point a step, on the line where both are equal; behind it the same steps in the repetition.

    `steps`: see steps.parquet.
    """
    shown = steps.iloc[:: -(-len(steps) // MOST_POINTS) or 1]
    columns = ("predicted_ns", "measured_ns", "repeat_ns")
    predicted, measured, repeat = (
        shown[name].to_numpy(dtype=np.float64, na_value=np.nan) / NS_PER_MS for name in columns
    )
    if not np.isnan(repeat).all():
        _points(ax, predicted, repeat, REPEAT_COLOUR, "executed again")
    _points(ax, predicted, measured, MEASURED_COLOUR, "executed")
    values = np.concatenate([predicted, measured, repeat])
    low, high = np.nanmin(values) / 1.3, np.nanmax(values) * 1.3
    ax.plot([low, high], [low, high], color=OUTLINE, linewidth=1, linestyle=(0, (4, 2)))
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.grid(True)
    # Without 2 and 5 a panel of less than a decade has one number; with them, one of many decades has too many.
    marked = (1.0, 2.0, 5.0) if high < MOST_MARKED * low else (1.0,)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=marked))
        axis.set_major_formatter("{x:,g}")
        axis.set_minor_formatter(NullFormatter())
    ax.set_title(policy)
    ax.set_xlabel("predicted step time (ms)")
    ax.set_ylabel("measured step time (ms)")
    ax.text(
        0.03, 0.97, _errors(steps), transform=ax.transAxes, va="top", fontsize=8, linespacing=1.4
    )


def _points(ax: Axes, x: np.ndarray, y: np.ndarray, colour: str, label: str) -> None:
    ax.scatter(
        x, y, s=7, color=colour, alpha=0.45, linewidths=0, label=label, rasterized=len(x) > 500
    )


def _errors(steps: pd.DataFrame) -> str:
    measured = steps["measured_ns"].to_numpy(dtype=np.float64)
    lines = []
    for name, column in (("error", "predicted_ns"), ("noise", "repeat_ns")):
        other = steps[column].to_numpy(dtype=np.float64, na_value=np.nan)
        if not np.isnan(other).any():
            shares = 100 * np.abs(other - measured) / measured
            lines.append(
                f"{name}: mean {shares.mean():.1f} %, p95 {np.percentile(shares, 95):.1f} %"
            )
    return "\n".join(lines)
