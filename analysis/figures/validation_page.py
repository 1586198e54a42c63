"""Figures of a validation: what was predicted on the left, what was executed on the right."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..definitions import NS_PER_S
from ..frames import RunFrames
from ..metrics import parts_over_time
from ..parts import PART_NAMES, PARTS
from . import memory_map, parts_bars, step_times
from . import parts_over_time as parts_panel
from .canvas import canvas, to_png, to_svg
from .pages import MAP_PIXELS, WIDTH_INCHES, map_patches

NUM_SCATTER_COLUMNS = 4
USED_LINE = {"color": "black", "linewidth": 1.1, "linestyle": (0, (2, 1.2))}


@dataclass(frozen=True)
class Pair:
    """One policy's two runs, and the steps of the second."""

    policy: str
    predicted: RunFrames
    executed: RunFrames
    steps: pd.DataFrame


def memory_over_time(pairs: Sequence[Pair]) -> bytes:
    """SVG: the parts of both runs of each policy; what was predicted as lines over what was executed."""
    with canvas(WIDTH_INCHES, 0.45 + 2.0 * len(pairs)) as figure:
        for pair, (left, right) in zip(pairs, _rows(figure, len(pairs)), strict=True):
            end_s = _end_s(pair)
            for run, ax, word in _sides(pair, left, right):
                parts_panel.draw(run, ax, end_s=end_s)
                _title(ax, pair.policy, word)
            _draw_predicted(pair.predicted, right)
        figure.legend(
            handles=parts_bars.part_patches(), loc="outside upper center", ncols=len(PARTS)
        )
        return to_svg(figure)


def memory_maps(pairs: Sequence[Pair]) -> bytes:
    """PNG: who holds which address in both runs of each policy."""
    with canvas(WIDTH_INCHES, 0.4 + 2.6 * len(pairs)) as figure:
        for pair, (left, right) in zip(pairs, _rows(figure, len(pairs)), strict=True):
            num_slots = pair.predicted.summary["pool_slots"]
            for run, ax, word in _sides(pair, left, right):
                memory_map.draw(run, ax, end_s=_end_s(pair), num_slots=num_slots, **MAP_PIXELS)
                _title(ax, pair.policy, word)
        handles = map_patches()
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
        return to_png(figure)


def step_scatter(pairs: Sequence[Pair]) -> bytes:
    """SVG: measured against predicted step times, a panel a policy."""
    num_columns = min(NUM_SCATTER_COLUMNS, max(3, len(pairs)))
    num_rows = -(-len(pairs) // num_columns)
    with canvas(WIDTH_INCHES, 0.4 + WIDTH_INCHES / num_columns * num_rows) as figure:
        axes = figure.subplots(num_rows, num_columns, squeeze=False).ravel().tolist()
        for ax in axes[len(pairs) :]:
            ax.remove()
        for pair, ax in zip(pairs, axes[: len(pairs)], strict=True):
            step_times.draw(pair.policy, pair.steps, ax)
        handles, labels = axes[0].get_legend_handles_labels()
        legend = figure.legend(
            handles, labels, loc="outside upper center", ncols=len(labels), markerscale=2.5
        )
        for handle in legend.legend_handles:
            handle.set_alpha(1)
        return to_svg(figure)


def _draw_predicted(run: RunFrames, ax: Axes) -> None:
    """Lines where the predicted run's live slots, and all of its granted ones, end."""
    parts = parts_over_time(run.timeline, run.summary["pool_slots"])
    for last in ("live", "rounding"):
        below = parts.shares[: PART_NAMES.index(last) + 1].sum(axis=0)
        ax.step(parts.edges_s, [*(100 * below), 100 * below[-1]], where="post", **USED_LINE)


def _rows(figure: Figure, num_rows: int) -> list[list[Axes]]:
    rows: list[list[Axes]] = figure.subplots(num_rows, 2, squeeze=False).tolist()
    return rows


def _sides(pair: Pair, left: Axes, right: Axes) -> list[tuple[RunFrames, Axes, str]]:
    return [(pair.predicted, left, "predicted"), (pair.executed, right, "executed")]


def _title(ax: Axes, policy: str, word: str) -> None:
    ax.set_title(f"{policy}, {word}")
    ax.set_xlabel("simulated time (s)" if word == "predicted" else "time on the device (s)")


def _end_s(pair: Pair) -> float:
    """Both panels show the time of the longer run."""
    return max(
        (run.summary["end_ns"] - run.summary["start_ns"]) / NS_PER_S
        for run in (pair.predicted, pair.executed)
    )
