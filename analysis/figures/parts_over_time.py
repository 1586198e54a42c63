"""How the parts of the pool change during one run."""

from matplotlib.axes import Axes

from ..definitions import NS_PER_S
from ..frames import RunFrames
from ..metrics import parts_over_time
from ..parts import OUTLINE, PARTS


def draw(frames: RunFrames, ax: Axes, *, end_s: float) -> None:
    """Draw stacked areas over 0 to `end_s`; the dashed line is the end of the loaded window.

    A run that is longer says how long.
    """
    parts = parts_over_time(frames.timeline, frames.summary["pool_slots"])
    # A row's mean holds for the whole row: steps, not slopes.
    shares = [[*(100 * share), 100 * share[-1]] for share in parts.shares]
    areas = ax.stackplot(
        parts.edges_s, shares, colors=[part.colour for part in PARTS], step="post", linewidth=0
    )
    for area in areas:
        # As vectors, hundreds of steps in each of seven areas would be most of a report's bytes.
        area.set_rasterized(True)
    loaded_s = (frames.summary["loaded_end_ns"] - frames.summary["start_ns"]) / NS_PER_S
    if loaded_s <= end_s:
        ax.axvline(loaded_s, color="black", linewidth=1, linestyle=(0, (4, 2)))
    run_s = parts.edges_s[-1]
    if run_s > end_s:
        ax.set_title(
            f"goes on to {run_s:,.0f} s \N{RIGHTWARDS ARROW}",
            loc="right",
            fontsize=8.5,
            fontweight="normal",
        )
    else:
        ax.axvline(run_s, color=OUTLINE, linewidth=0.8)
    ax.set_xlim(0, end_s)
    ax.set_ylim(0, 100)
    ax.set_title(frames.policy)
    ax.set_xlabel("simulated time (s)")
    ax.set_ylabel("share of the pool (%)")
