"""Memory map: which request holds which address at which time."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from ..definitions import NS_PER_S
from ..frames import RunFrames

FREE = -1
WASTED = -2
FREE_COLOUR = (255, 255, 255)
WASTED_COLOUR = (196, 196, 196)
# Neighbours in the trace are often neighbours in memory, so successive rows differ in lightness.
REQUEST_COLOURS = (
    (0, 114, 178),
    (230, 159, 0),
    (0, 158, 115),
    (204, 121, 167),
    (86, 180, 233),
    (213, 94, 0),
    (0, 75, 60),
    (222, 205, 60),
    (94, 60, 153),
)


def useful_slots(snapshots: pd.DataFrame, requests: pd.DataFrame) -> NDArray[np.int64]:
    """Slots at the head of each run of `snapshots` that are, or will be, written.

    A request commits prompt + output - 1 tokens. Where it holds a single run, the slots behind
    those are never written; where it is over and its memory still held (a static batch), none is.
    Where it holds several runs their order is unknown, and all of their slots count as useful.
    """
    request = requests.set_index("row").loc[snapshots["row"]]
    planned = (request["num_prompt_tokens"] + request["num_output_tokens"] - 1).to_numpy()
    num_slots = snapshots["num_slots"].to_numpy()
    runs = snapshots.groupby(["time_ns", "row"])["num_slots"].transform("size").to_numpy()
    finished_ns = request["finished_ns"].to_numpy(dtype=np.float64, na_value=np.inf)
    useful = np.where(runs == 1, np.minimum(num_slots, planned), num_slots)
    # At its last step a request is still alive, hence <.
    return np.where(finished_ns < snapshots["time_ns"].to_numpy(), 0, useful)


def column(
    runs: pd.DataFrame, useful: NDArray[np.int64], num_slots: int, height: int
) -> NDArray[np.int64]:
    """One instant as `height` pixels from address 0 down: a row number, FREE or WASTED.

    `runs` are the occupied runs of one snapshot. A pixel shows the slot at its middle.
    """
    pixels = np.full(height, FREE, dtype=np.int64)
    if runs.empty:
        return pixels
    order = np.argsort(runs["first_slot"].to_numpy(), kind="stable")
    first = runs["first_slot"].to_numpy()[order]
    length = runs["num_slots"].to_numpy()[order]
    row = runs["row"].to_numpy()[order]
    slots = ((np.arange(height) + 0.5) * num_slots / height).astype(np.int64)
    at = np.searchsorted(first, slots, side="right") - 1
    offset = slots - first[at]
    inside = (at >= 0) & (offset < length[at])
    written = offset < useful[order][at]
    pixels[inside] = np.where(written, row[at], WASTED)[inside]
    return pixels


def raster(
    frames: RunFrames, *, end_ns: int, num_slots: int, width: int, height: int
) -> NDArray[np.int64]:
    """The first `end_ns` of `frames` as [height, width] row numbers, FREE or WASTED.

    Between two snapshots the earlier timeline row's picture holds, as the row's means do.
    """
    assert frames.snapshots is not None, f"{frames.policy} was run without snapshots"
    image = np.full((height, width), FREE, dtype=np.int64)
    useful = useful_slots(frames.snapshots, frames.requests)
    by_time = frames.snapshots.groupby("time_ns").indices
    start_ns = frames.timeline["start_ns"].to_numpy()
    row_ends = frames.timeline["end_ns"].to_numpy()
    instants = start_ns[0] + (np.arange(width) + 0.5) * end_ns / width
    at = np.searchsorted(row_ends, instants, side="right")
    for index in np.unique(at[at < len(row_ends)]):
        # A timeline row's snapshot is of its end; none means that nothing was held.
        lines = by_time.get(row_ends[index], np.array([], dtype=np.int64))
        pixels = column(frames.snapshots.iloc[lines], useful[lines], num_slots, height)
        image[:, at == index] = pixels[:, np.newaxis]
    return image


def colours(image: NDArray[np.int64]) -> NDArray[np.uint8]:
    """RGB of a raster: [height, width, 3]."""
    palette = np.array([*REQUEST_COLOURS, WASTED_COLOUR, FREE_COLOUR], dtype=np.uint8)
    # FREE (-1) and WASTED (-2) index the palette from its end.
    return palette[np.where(image >= 0, image % len(REQUEST_COLOURS), image)]


def draw(frames: RunFrames, ax: Axes, *, end_s: float, num_slots: int, **size: Any) -> None:
    """Draw the first `end_s` seconds: time to the right, address down. `size`: raster's pixels."""
    image = raster(frames, end_ns=round(end_s * NS_PER_S), num_slots=num_slots, **size)
    ax.imshow(
        colours(image), extent=(0, end_s, num_slots, 0), aspect="auto", interpolation="nearest"
    )
    ax.spines[["top", "right"]].set_visible(True)
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.set_title(frames.policy)
    ax.set_xlabel("simulated time (s)")
    summary = frames.summary
    # With several groups of layers a slot is a part of a token.
    slot_bytes = summary["pool_bytes"] // summary["pool_slots"]
    grouped = len(summary["group_windows"]) > 1
    ax.set_ylabel(f"address (slots of {slot_bytes:,} B)" if grouped else "address (token slot)")
