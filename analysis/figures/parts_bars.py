"""Where the pool is: one 100 % bar per policy, beside the number of requests that run together."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from ..parts import OUTLINE, PARTS

# A narrower piece has no room for its number.
MIN_LABELLED_SHARE = 0.035


def draw(summaries: Sequence[dict[str, Any]], parts_ax: Axes, running_ax: Axes) -> None:
    """Draw the shares over the loaded window on `parts_ax`, the mean batch on `running_ax`.

    Where no request was ever held in the pool, words stand in place of a bar.
    """
    positions = range(len(summaries))
    for position, summary in zip(positions, summaries, strict=True):
        if words := _why_empty(summary):
            parts_ax.text(1, position, words, va="center", fontsize=8.5)
            continue
        left = 0.0
        for part in PARTS:
            share = summary["shares"][part.name]
            parts_ax.barh(
                position,
                100 * share,
                left=100 * left,
                color=part.colour,
                edgecolor=OUTLINE,
                height=0.72,
            )
            if share >= MIN_LABELLED_SHARE:
                parts_ax.text(
                    100 * (left + share / 2),
                    position,
                    f"{100 * share:.1f}",
                    ha="center",
                    va="center",
                    fontsize=8.5,
                    color=_readable_on(part.colour),
                )
            left += share
    _name_rows(parts_ax, [s["policy"] for s in summaries])
    _place_rows(parts_ax, len(summaries))
    parts_ax.set_xlim(0, 100)
    parts_ax.set_xlabel("share of the KV pool, mean over the loaded window (%)")
    parts_ax.legend(
        handles=part_patches(),
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=len(PARTS),
        handlelength=1.1,
        columnspacing=1.2,
    )

    running = [s["mean_running"] for s in summaries]
    bars = running_ax.barh(positions, running, color="#5B6B7B", height=0.72)
    running_ax.bar_label(bars, fmt="{:.1f}", padding=3, fontsize=8.5)
    _name_rows(running_ax, [])
    _place_rows(running_ax, len(summaries))
    running_ax.set_xlim(0, 1.22 * (max(running) or 1))
    running_ax.set_xlabel("requests running together (mean)")


def part_patches() -> list[Patch]:
    """Legend handles for the parts, in their order."""
    return [Patch(facecolor=part.colour, edgecolor=OUTLINE, label=part.name) for part in PARTS]


def _name_rows(ax: Axes, names: Sequence[str]) -> None:
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(axis="y", length=0)


def _place_rows(ax: Axes, num: int) -> None:
    """The first row on top, each at the same height in both panels."""
    ax.set_ylim(num - 0.5, -0.5)


def _why_empty(summary: dict[str, Any]) -> str:
    # A pool that nobody was let into must not look like one that is kept free.
    if not summary["num_finished"]:
        return "rejected every request"
    return "" if summary["shares"]["live"] else "keeps no KV cache"


def _readable_on(colour: str) -> str:
    red, green, blue = to_rgb(colour)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
