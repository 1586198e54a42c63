"""Whole figures: panels on a canvas, legends, and bytes to save."""

import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..definitions import NS_PER_S, UNCALIBRATED
from ..frames import RunFrames
from ..parts import OUTLINE, PARTS
from . import cache_or_not as cache_or_not_panel
from . import memory_map, parts_bars, parts_over_time
from .canvas import canvas, to_png, to_svg

WIDTH_INCHES = 12.0
NUM_COLUMNS = 2
LONGEST_SHOWN = 1.5
MAP_PIXELS = {"width": 560, "height": 300}


def parts(summaries: Sequence[dict[str, Any]]) -> bytes:
    """SVG: where the pool is, beside the mean batch."""
    with canvas(WIDTH_INCHES, 0.85 + 0.36 * len(summaries)) as figure:
        parts_ax, running_ax = figure.subplots(1, 2, width_ratios=(4, 1))
        parts_bars.draw(summaries, parts_ax, running_ax)
        return to_svg(figure)


def parts_over_time_grid(runs: Sequence[RunFrames]) -> bytes:
    """SVG: the parts over time, one panel per policy, all on one time scale."""
    end_s = shared_end_s([_duration_s(run) for run in runs])
    with canvas(WIDTH_INCHES, 0.4 + 1.9 * _num_rows(runs)) as figure:
        for run, ax in zip(runs, _grid(figure, runs), strict=True):
            parts_over_time.draw(run, ax, end_s=end_s)
        figure.legend(
            handles=parts_bars.part_patches(), loc="outside upper center", ncols=len(PARTS)
        )
        _stamp(figure, all(run.summary["calibrated"] for run in runs))
        return to_svg(figure)


def shared_end_s(durations_s: Sequence[float]) -> float:
    """Where the common time axis of runs ends.

    One slow policy must not squeeze the others, so it ends at `LONGEST_SHOWN` x the median.
    """
    return min(max(durations_s), LONGEST_SHOWN * statistics.median(durations_s))


def memory_map_grid(runs: Sequence[RunFrames]) -> bytes:
    """PNG: who holds which address, one panel per policy, all on the scale of the shortest run."""
    end_s = min(_duration_s(run) for run in runs)
    num_bytes = max(run.summary["pool_bytes"] for run in runs)
    with canvas(WIDTH_INCHES, 0.4 + 2.7 * _num_rows(runs)) as figure:
        for run, ax in zip(runs, _grid(figure, runs), strict=True):
            # Slots may be of different sizes, and bytes are to scale.
            num_slots = num_bytes * run.summary["pool_slots"] // run.summary["pool_bytes"]
            memory_map.draw(run, ax, end_s=end_s, num_slots=num_slots, **MAP_PIXELS)
        handles = map_patches()
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
        _stamp(figure, all(run.summary["calibrated"] for run in runs))
        return to_png(figure)


def map_patches() -> list[Patch]:
    """The legend of a memory map."""
    return [
        Patch(
            facecolor=_rgb(memory_map.REQUEST_COLOURS[0]),
            label="one colour: one request (colours repeat)",
        ),
        Patch(facecolor=_rgb(memory_map.WASTED_COLOUR), label="granted, never to be written"),
        Patch(facecolor=_rgb(memory_map.FREE_COLOUR), edgecolor=OUTLINE, label="free"),
    ]


def cache_or_not(no_cache: RunFrames, paged: RunFrames) -> bytes:
    """SVG: one request with and without a KV cache."""
    with canvas(WIDTH_INCHES, 3.2) as figure:
        time_ax, bytes_ax = figure.subplots(1, 2)
        cache_or_not_panel.draw(
            no_cache.timeline,
            paged.timeline,
            time_ax,
            bytes_ax,
            kv_bytes_per_token=paged.summary["kv_bytes_per_token"],
        )
        _stamp(figure, paged.summary["calibrated"])
        return to_svg(figure)


def _grid(figure: Figure, runs: Sequence[RunFrames]) -> list[Axes]:
    """One panel per run; panels that no run needs are taken away."""
    axes = figure.subplots(_num_rows(runs), NUM_COLUMNS, squeeze=False).ravel().tolist()
    for ax in axes[len(runs) :]:
        ax.remove()
    return axes[: len(runs)]


def _num_rows(runs: Sequence[RunFrames]) -> int:
    return -(-len(runs) // NUM_COLUMNS)


def _duration_s(run: RunFrames) -> float:
    return float(run.summary["end_ns"] - run.summary["start_ns"]) / NS_PER_S


def _stamp(figure: Figure, calibrated: bool) -> None:
    if not calibrated:
        figure.text(
            0.995, 0.995, f"times {UNCALIBRATED}", ha="right", va="top", fontsize=8, color="#B03A00"
        )


def _rgb(colour: tuple[int, int, int]) -> tuple[float, float, float]:
    red, green, blue = colour
    return red / 255, green / 255, blue / 255
