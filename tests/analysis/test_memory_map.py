"""The memory map against a drawing by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
from fabricated import POOL_SLOTS, requests, snapshots, write_run

from kvtwin.analysis.figures.memory_map import (
    FREE,
    FREE_COLOUR,
    REQUEST_COLOURS,
    WASTED,
    WASTED_COLOUR,
    colours,
    column,
    raster,
    useful_slots,
)
from kvtwin.analysis.frames import read_run

F, W = FREE, WASTED


def test_useful_slots_by_hand() -> None:
    # Row 0 commits 15 of its 16 slots. Row 1 holds two runs: all count. Row 2 commits 3 of its 8
    # until it ends at 1.5 s, none afterwards.
    useful = useful_slots(snapshots(), requests())
    assert useful.tolist() == [15, 8, 4, 3] + 3 * [15, 8, 4, 0]


def test_a_request_is_alive_in_the_snapshot_of_its_last_step() -> None:
    at_its_end = requests().assign(finished_ns=4_000_000_000)
    assert useful_slots(snapshots(), at_its_end)[-1] == 3


def test_column_by_hand() -> None:
    # Eight pixels of 8 slots; each shows the slot at its middle: 4, 12, 20, ...
    runs = pd.DataFrame({"first_slot": [48, 0, 32], "num_slots": [4, 16, 16], "row": [7, 5, 6]})
    pixels = column(runs, np.array([4, 6, 16]), POOL_SLOTS, 8)
    assert pixels.tolist() == [5, W, F, F, 6, 6, F, F]


def test_column_of_an_empty_pool_is_free() -> None:
    nothing = snapshots().iloc[:0]
    assert column(nothing, np.array([], dtype=np.int64), POOL_SLOTS, 3).tolist() == [F, F, F]


def test_raster_by_hand(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "paged")
    run = read_run(tmp_path / "run")
    # 5 s in ten columns, of which the run fills eight; 16 pixels of 4 slots.
    image = raster(run, end_ns=5_000_000_000, num_slots=POOL_SLOTS, width=10, height=16)
    first_second = [0, 0, 0, 0, F, F, F, F, 1, 1, F, F, 1, F, 2, W]
    later = [0, 0, 0, 0, F, F, F, F, 1, 1, F, F, 1, F, W, W]
    assert image.T.tolist() == [first_second] * 2 + [later] * 6 + [[F] * 16] * 2


def test_every_pixel_has_the_colour_of_its_state() -> None:
    num = len(REQUEST_COLOURS)
    rgb = colours(np.array([[FREE, WASTED, 0, num - 1, num]]))
    expected = [FREE_COLOUR, WASTED_COLOUR, REQUEST_COLOURS[0], REQUEST_COLOURS[-1]]
    assert rgb[0].tolist() == [list(colour) for colour in [*expected, REQUEST_COLOURS[0]]]


def test_colours_are_distinct() -> None:
    assert len({*REQUEST_COLOURS, FREE_COLOUR, WASTED_COLOUR}) == len(REQUEST_COLOURS) + 2
