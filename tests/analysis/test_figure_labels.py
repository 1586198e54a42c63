"""Every figure names its axes, and every mark stands for the number it is named after."""

from collections.abc import Callable
from typing import Any

import pytest
from fabricated import PARTS, distinct_summary, requests, snapshots, timeline
from matplotlib.artist import Artist
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from kvtwin.analysis.figures import pages
from kvtwin.analysis.frames import RunFrames

ROW_CHANGE_NS = 1_500_000_000
TIME = "simulated time (s)"


def frames(policy: str, /, **changed: Any) -> RunFrames:
    """A run of 5.25 s: the shares of the summary for half a second, then those of the whole run."""
    made = distinct_summary(policy, **changed)
    rows = timeline("paged").iloc[:2].assign(num_steps=[4, 7])
    rows["start_ns"] = [made["start_ns"], ROW_CHANGE_NS]
    rows["end_ns"] = [ROW_CHANGE_NS, made["end_ns"]]
    for part in PARTS:
        means = (made["shares"][part], made["shares_whole_run"][part])
        rows[f"{part}_slots"] = [mean * made["pool_slots"] for mean in means]
    return RunFrames(
        run={"summary": made}, requests=requests(), timeline=rows, snapshots=snapshots()
    )


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Figure]:
    """Calls a function of `pages`; returns the figure that it would have saved."""
    saved: list[Figure] = []

    def keep(figure: Figure) -> bytes:
        saved.append(figure)
        return b""

    def drawn(page: Callable[..., bytes], *arguments: Any) -> Figure:
        page(*arguments)
        return saved.pop()

    monkeypatch.setattr(pages, "to_svg", keep)
    monkeypatch.setattr(pages, "to_png", keep)
    return drawn


def axis_labels(figure: Figure) -> list[tuple[str, str]]:
    return [(ax.get_xlabel(), ax.get_ylabel()) for ax in figure.axes]


def legend_colours(legend: Legend) -> dict[str, str]:
    """Name to colour."""
    names = [text.get_text() for text in legend.get_texts()]
    return dict(zip(names, map(colour, legend.legend_handles), strict=True))


def colour(artist: Artist | None) -> str:
    face = artist.get_facecolor()  # type: ignore[union-attr]
    return to_hex(face if len(face) == 4 else face[0])


def test_bars_have_the_colours_and_widths_of_their_parts(draw: Callable[..., Figure]) -> None:
    summaries = [distinct_summary("one"), distinct_summary("two", mean_running=3.25)]
    figure = draw(pages.parts, summaries)
    parts_ax, running_ax = figure.axes
    assert axis_labels(figure) == [
        ("share of the KV pool, mean over the loaded window (%)", ""),
        ("requests running together (mean)", ""),
    ]
    assert [tick.get_text() for tick in parts_ax.get_yticklabels()] == ["one", "two"]
    legend = parts_ax.get_legend()
    assert legend is not None
    named = {colour: name for name, colour in legend_colours(legend).items()}
    bars = [(named[colour(bar)], bar.get_x(), bar.get_width()) for bar in parts_ax.patches]
    lefts = (0, 31, 50, 67, 80, 91, 97)
    widths = (31, 19, 17, 13, 11, 6, 3)
    expected = list(zip(PARTS, lefts, widths, strict=True)) * 2
    assert [name for name, *_ in bars] == [name for name, *_ in expected]
    assert [place for _, *place in bars] == [pytest.approx(place) for _, *place in expected]
    shown = ["31.0", "19.0", "17.0", "13.0", "11.0", "6.0"]  # 3 % has no room for its number
    assert [text.get_text() for text in parts_ax.texts] == shown * 2
    assert [bar.get_width() for bar in running_ax.patches] == [12.73, 3.25]
    assert [text.get_text() for text in running_ax.texts] == ["12.7", "3.2"]


def test_areas_have_the_colours_heights_and_times_of_their_parts(
    draw: Callable[..., Figure],
) -> None:
    run = frames("one")
    figure = draw(pages.parts_over_time_grid, [run])
    (ax,) = figure.axes
    assert axis_labels(figure) == [(TIME, "share of the pool (%)")]
    assert (ax.get_title(), ax.get_title(loc="left")) == ("", "one")
    colours = legend_colours(figure.legends[0])
    assert list(colours) == list(PARTS)
    areas = {colour(area): area.get_paths()[0] for area in ax.collections}
    # The row changes at 0.5 s.
    for second, shares in ((0.45, "shares"), (0.55, "shares_whole_run"), (5.2, "shares_whole_run")):
        below = 0.0
        for part in PARTS:
            height = 100 * run.summary[shares][part]
            area = areas[colours[part]]
            # Half a point inside both of its edges, not half a point outside.
            found = [area.contains_point((second, below + y)) for y in (0.5, height - 0.5)]
            found += [area.contains_point((second, below + y)) for y in (-0.5, height + 0.5)]
            assert found == [True, True, False, False], (part, second)
            below += height


def test_lines_are_at_the_end_of_the_loaded_window_and_of_the_run(
    draw: Callable[..., Figure],
) -> None:
    (ax,) = draw(pages.parts_over_time_grid, [frames("one")]).axes
    # Times are s since the start of the run, which is at 1 s.
    marks = [(line.get_xdata()[0], line.is_dashed()) for line in ax.lines]  # type: ignore[index]
    assert marks == [(2.5, True), (5.25, False)]


def test_panels_over_time_share_seconds(draw: Callable[..., Figure]) -> None:
    # 5.25 s and 9 s: the longest is within 1.5 times the median; a map ends with the quickest.
    runs = [frames("one"), frames("two", end_ns=10_000_000_000)]
    over_time = draw(pages.parts_over_time_grid, runs)
    assert axis_labels(over_time) == [(TIME, "share of the pool (%)")] * 2
    assert [ax.get_title(loc="left") for ax in over_time.axes] == ["one", "two"]
    assert [ax.get_xlim() for ax in over_time.axes] == [(0, 9), (0, 9)]
    assert [text.get_text() for text in over_time.texts] == ["times UNCALIBRATED"]
    memory_map = draw(pages.memory_map_grid, runs)
    assert axis_labels(memory_map) == [(TIME, "address (token slot)")] * 2
    assert [ax.get_title(loc="left") for ax in memory_map.axes] == ["one", "two"]
    assert [list(ax.images[0].get_extent()) for ax in memory_map.axes] == [[0, 5.25, 1000, 0]] * 2
    assert [text.get_text() for text in memory_map.texts] == ["times UNCALIBRATED"]
    assert legend_colours(memory_map.legends[0]) == {
        "one colour: one request (colours repeat)": "#0072b2",
        "granted, never to be written": "#c4c4c4",
        "free": "#ffffff",
    }


def test_memory_maps_have_bytes_to_scale(draw: Callable[..., Figure]) -> None:
    """Slots of half the bytes, and three quarters of the pool: as tall as 2,000 of its slots, of which it has 1,500."""
    halves = {"pool_slots": 1500, "pool_bytes": 1_536_000, "group_windows": [None, 128]}
    figure = draw(pages.memory_map_grid, [frames("one"), frames("two", **halves)])
    assert [ax.images[0].get_extent()[2] for ax in figure.axes] == [1000, 2000]
    assert [label for _, label in axis_labels(figure)] == [
        "address (token slot)",
        "address (slots of 1,024 B)",
    ]


def test_curves_with_and_without_a_cache_are_named(draw: Callable[..., Figure]) -> None:
    without, cached = frames("no-cache"), frames("paged")
    held = [f"{part}_slots" for part in ("live", "reserved", "internal", "rounding")]
    gib_slots = 2**30 // cached.summary["kv_bytes_per_token"]
    without.timeline[held] = 0.0
    without.timeline["end_ns"] += 2_000_000_000
    cached.timeline[held] = float(gib_slots)
    figure = draw(pages.cache_or_not, without, cached)
    assert axis_labels(figure) == [
        ("tokens generated", "time since start (s)"),
        ("tokens generated", "KV memory held (GiB)"),
    ]
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["Time", "Memory"]
    assert [text.get_text() for text in figure.texts] == ["times UNCALIBRATED"]
    time_curves, byte_curves = (
        {str(line.get_label()): line.get_xydata().tolist() for line in ax.lines}
        for ax in figure.axes
    )
    assert time_curves == {
        "without a KV cache": [[4, 2.5], [11, 7.25]],
        "with a KV cache (paged)": [[4, 0.5], [11, 5.25]],
    }
    assert byte_curves == {
        "without a KV cache": [[4, 0], [11, 0]],
        "with a KV cache (paged)": [[4, 4], [11, 4]],
    }
    for ax in figure.axes:
        legend = ax.get_legend()
        assert legend is not None
        drawn = [(line.get_label(), line.get_color(), line.is_dashed()) for line in ax.lines]
        keys = zip(legend.get_texts(), legend.get_lines(), strict=True)
        assert drawn == [(t.get_text(), key.get_color(), key.is_dashed()) for t, key in keys]
