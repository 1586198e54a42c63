"""The report of a comparison: figures beside one HTML page that holds them all."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .definitions import LATENCIES, LOADED_WINDOW, PREFIX_HITS, STATISTICS, latency_cell
from .facts import labelled_facts
from .figures import pages
from .frames import RunFrames, read_run
from .layout import (
    CACHE_OR_NOT_DIR,
    CACHE_OR_NOT_POLICIES,
    CACHE_OR_NOT_SVG,
    COMPARISON_JSON,
    MEMORY_MAP_PNG,
    PARTS_OVER_TIME_SVG,
    PARTS_SVG,
    REPORT_HTML,
    run_dir_name,
)
from .notices import notices
from .page import render
from .parts import PARTS
from .printing import to_json
from .swaps import HEADINGS, any_swapped, swap_cells


def write_report(comparison: Mapping[str, Any], out: Path) -> None:
    """Write comparison.json, figures and report.html beside the run directories in `out`."""
    (out / COMPARISON_JSON).write_text(to_json(comparison) + "\n")
    runs = [read_run(out / run_dir_name(s["policy"])) for s in comparison["policies"]]
    figures = draw_figures(comparison, runs, out / CACHE_OR_NOT_DIR)
    for name, content in figures.items():
        (out / name).write_bytes(content)
    (out / REPORT_HTML).write_text(render_page(comparison, figures))


def draw_figures(
    comparison: Mapping[str, Any], runs: Sequence[RunFrames], cache_or_not_dir: Path
) -> dict[str, bytes]:
    """Content of each figure file by name; cache-or-not only where its two runs exist."""
    kept = [run for run in runs if keeps_kv(run.summary)]
    figures = {PARTS_SVG: pages.parts(comparison["policies"])}
    if kept:
        figures[PARTS_OVER_TIME_SVG] = pages.parts_over_time_grid(kept)
        figures[MEMORY_MAP_PNG] = pages.memory_map_grid(kept)
    if cache_or_not_dir.is_dir():
        no_cache, paged = (read_run(cache_or_not_dir / name) for name in CACHE_OR_NOT_POLICIES)
        figures[CACHE_OR_NOT_SVG] = pages.cache_or_not(no_cache, paged)
    return figures


def keeps_kv(summary: Mapping[str, Any]) -> bool:
    """False where there is nothing to draw: no request ran, or the policy keeps no cache."""
    return bool(summary["shares"]["live"] > 0)


def render_page(comparison: Mapping[str, Any], figures: Mapping[str, bytes]) -> str:
    """The page as one self-contained HTML document."""
    return render(
        "report.html.j2",
        figures,
        comparison=comparison,
        facts=labelled_facts(comparison),
        notices=notices(comparison),
        not_drawn=[s["policy"] for s in comparison["policies"] if not keeps_kv(s)],
        parts=PARTS,
        latencies=LATENCIES,
        statistics=STATISTICS,
        loaded_window=LOADED_WINDOW,
        prefix_hits=PREFIX_HITS,
        latency_cell=latency_cell,
        constant_steps=str(comparison["config"]["cost"]).startswith("constant"),
        gib=2**30,
        swap_headings=HEADINGS if any_swapped(comparison["policies"]) else (),
        swap_cells=swap_cells,
    )
