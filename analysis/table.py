"""Results for people at a terminal; 100 columns are enough, piped or not."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from .definitions import LATENCIES, LOADED_WINDOW, UNCALIBRATED, latency_cell
from .metrics import Notice
from .parts import PART_NAMES

Summary = dict[str, Any]
WIDTH_COLUMNS = 100
# All are in --json and in the report; these fit beside the rest.
SHOWN_LATENCIES = (
    ("ttft_ms", "TTFT", "p50"),
    ("ttft_ms", "TTFT", "p99"),
    ("tpot_ms", "TPOT", "p50"),
    ("tpot_ms", "TPOT", "p99"),
    ("itl_ms", "ITL", "p99"),
)


def memory_table(summaries: Sequence[Summary]) -> Table:
    """Where the pool is: one row per policy, shares in percent."""
    table = _table("Mean requests running, and where the KV pool is (%), over the loaded window")
    table.add_column("running", justify="right", no_wrap=True)
    for name in PART_NAMES:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("largest free run", justify="right")
    for summary in summaries:
        largest = summary["largest_free_run_share"]
        table.add_row(
            summary["policy"],
            f"{summary['mean_running']:.1f}",
            *(f"{100 * summary['shares'][name]:.1f}" for name in PART_NAMES),
            "-" if largest is None else f"{100 * largest:.1f}",
        )
    return table


def request_table(summaries: Sequence[Summary]) -> Table:
    """What became of the requests, and how fast; latencies in ms."""
    stamp = "" if all(s["calibrated"] for s in summaries) else f", {UNCALIBRATED}"
    table = _table(f"Requests, throughput, and latencies in ms{stamp}")
    for heading in ("preempt", "rejected", "clipped", "tok/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for _, name, statistic in SHOWN_LATENCIES:
        table.add_column(f"{name} {statistic}", justify="right")
    for summary in summaries:
        table.add_row(
            summary["policy"],
            *(f"{summary[key]:,}" for key in ("preemptions", "num_rejected", "num_clipped")),
            latency_cell(summary["output_tokens_per_s"]),
            *(latency_cell(summary[key][statistic]) for key, _, statistic in SHOWN_LATENCIES),
        )
    return table


def print_comparison(
    summaries: Sequence[Summary], notices: Sequence[Notice], verdict: str, out: str
) -> None:
    """Both tables, what must not be overlooked, where the files are, and the verdict last."""
    console = _console()
    console.print(memory_table(summaries))
    console.print(request_table(summaries))
    for _, name, meaning in LATENCIES[:3]:
        console.print(f"{name}: {meaning}", style="dim")
    console.print(f"{LOADED_WINDOW}; largest free run: % of the free slots", style="dim")
    for notice in notices:
        console.print(f"{notice.kind}: {notice.text}", style="bold" if notice.serious else "dim")
    console.print(f"Report: {out}")
    # soft_wrap: the verdict stays one line, whatever the width.
    console.print(verdict, style="bold", soft_wrap=True)


def _table(title: str) -> Table:
    # Two spaces between columns and none around: all columns fit into WIDTH_COLUMNS.
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    table.add_column("policy", no_wrap=True)
    return table


def _console() -> Console:
    # rich assumes 80 columns where there is no terminal; files and pipes have no such limit.
    plain = Console(highlight=False, markup=False)
    return (
        plain if plain.is_terminal else Console(highlight=False, markup=False, width=WIDTH_COLUMNS)
    )
