"""What the figures draw, by hand."""

from pathlib import Path

import pytest
from fabricated import summary, timeline, write_run
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from kvtwin.analysis.figures import cache_or_not, parts_bars
from kvtwin.analysis.figures import parts_over_time as over_time
from kvtwin.analysis.figures.pages import shared_end_s
from kvtwin.analysis.frames import read_run
from kvtwin.analysis.metrics import parts_over_time
from kvtwin.analysis.parts import PARTS


def test_parts_have_distinct_colours() -> None:
    # Apart in lightness or hue by more than an eye could miss, free being the lightest.
    rgbs = [to_rgb(part.colour) for part in PARTS]
    for i, one in enumerate(rgbs):
        for other in rgbs[:i]:
            assert sum(abs(a - b) for a, b in zip(one, other, strict=True)) > 0.3
    assert max(rgbs, key=sum) == to_rgb(PARTS[-1].colour)
    assert PARTS[-1].name == "free"


def test_parts_over_time_by_hand() -> None:
    parts = parts_over_time(timeline("contiguous"), 64)
    assert parts.edges_s.tolist() == [0, 1, 2, 3, 4]
    assert parts.shares[:, 0] == pytest.approx([0.6, 0.1, 0.05, 0, 0, 0.05, 0.2])


def test_cache_or_not_plots_tokens_time_and_bytes() -> None:
    time_ax, bytes_ax = Figure().subplots(1, 2)
    nothing = dict.fromkeys(
        ("live_slots", "reserved_slots", "internal_slots", "rounding_slots"), 0.0
    )
    without_cache = timeline("paged").assign(**nothing)
    held = {"live_slots": [2**20 - 5, 2**21, 3 * 2**20, 2**22], "reserved_slots": [5, 0, 0, 0]}
    with_cache = without_cache.assign(**held)
    cache_or_not.draw(
        without_cache,
        with_cache,
        time_ax,
        bytes_ax,
        kv_bytes_per_token=1024,
    )
    # Ten steps of one token in each of four rows of a second; 2**20 slots of 1 KiB are 1 GiB.
    assert [line.get_xydata().tolist() for line in time_ax.lines] == [
        [[10, 1], [20, 2], [30, 3], [40, 4]]
    ] * 2
    without, cached = bytes_ax.lines
    assert without.get_ydata().tolist() == [0, 0, 0, 0]
    assert cached.get_ydata().tolist() == [1, 2, 3, 4]


def test_a_policy_without_anything_in_the_pool_has_words_for_a_bar() -> None:
    empty = dict.fromkeys((part.name for part in PARTS), 0.0) | {"free": 1.0}
    parts_ax, running_ax = Figure().subplots(1, 2)
    parts_bars.draw(
        [
            summary("orca-max", shares=empty, num_finished=0, num_rejected=3),
            summary("contiguous", shares=empty, policy="no-cache"),
            summary("paged"),
        ],
        parts_ax,
        running_ax,
    )
    words = [(text.get_text(), text.get_position()[1]) for text in parts_ax.texts]
    assert words == [("rejected every request", 0), ("keeps no KV cache", 1), ("95.0", 2)]
    assert len(parts_ax.patches) == len(PARTS)
    assert parts_ax.get_ylim() == running_ax.get_ylim() == (2.5, -0.5)


def test_one_slow_run_does_not_squeeze_the_others() -> None:
    assert shared_end_s([10, 12, 14]) == 14
    assert shared_end_s([10, 12, 100]) == 18
    assert shared_end_s([10, 14, 100, 12]) == 19.5
    assert shared_end_s([7]) == 7


@pytest.mark.parametrize(
    ("end_s", "label", "num_lines"),
    [
        (3.0, "goes on to 4 s \N{RIGHTWARDS ARROW}", 1),
        (1.0, "goes on to 4 s \N{RIGHTWARDS ARROW}", 0),
        (4.0, "", 2),
        (5.0, "", 2),
    ],
)
def test_a_run_that_goes_on_says_so(
    end_s: float, label: str, num_lines: int, tmp_path: Path
) -> None:
    write_run(tmp_path / "paged", "paged")
    ax = Figure().subplots()
    over_time.draw(read_run(tmp_path / "paged"), ax, end_s=end_s)
    # The loaded window ends after 2 s, the run after 4 s; the lines mark what is in sight.
    assert (ax.get_title(loc="right"), len(ax.lines)) == (label, num_lines)
    assert ax.get_xlim() == (0, end_s)
