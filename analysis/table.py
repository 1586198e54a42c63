"""Results for people at a terminal; 100 columns are enough, piped or not."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Column, Table

from .definitions import LATENCIES, LOADED_WINDOW, UNCALIBRATED, latency_cell
from .facts import header_lines
from .notices import Notice
from .parts import PART_NAMES
from .swaps import HEADINGS, any_swapped, swap_cells

Summary = dict[str, Any]
# Where the tables end for any usual numbers.
WIDTH_COLUMNS = 100
PIPE_WIDTH_COLUMNS = 1000
GAP_COLUMNS = 2
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
    table = plain_table(
        "Mean requests running, the most, and where the KV pool is (%): loaded window",
        "policy",
    )
    table.add_column("running", justify="right", no_wrap=True)
    table.add_column("most", justify="right", no_wrap=True)
    for name in PART_NAMES:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("largest\nrun", justify="right", no_wrap=True)
    for summary in summaries:
        largest = summary["largest_free_run_share"]
        table.add_row(
            summary["policy"],
            f"{summary['mean_running']:.1f}",
            f"{summary['most_running']:,}",
            *(f"{100 * summary['shares'][name]:.1f}" for name in PART_NAMES),
            "-" if largest is None else f"{100 * largest:.1f}",
        )
    return table


def request_table(summaries: Sequence[Summary]) -> Table:
    """What became of the requests, and how fast; latencies in ms."""
    stamp = "" if all(s["calibrated"] for s in summaries) else f", {UNCALIBRATED}"
    table = plain_table(f"Requests, throughput, and latencies in ms{stamp}", "policy")
    for heading in ("preempt", "rejected", "clipped", "tok/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for _, name, statistic in SHOWN_LATENCIES:
        table.add_column(f"{name}\n{statistic}", justify="right", no_wrap=True)
    for summary in summaries:
        table.add_row(
            summary["policy"],
            *(f"{summary[key]:,}" for key in ("preemptions", "num_rejected", "num_clipped")),
            latency_cell(summary["output_tokens_per_s"]),
            *(latency_cell(summary[key][statistic]) for key, _, statistic in SHOWN_LATENCIES),
        )
    return table


def swap_table(summaries: Sequence[Summary]) -> Table:
    """What preemptions moved to the host and back."""
    table = plain_table("Preemptions, and what they swapped", "policy")
    for heading in ("preempt", *HEADINGS):
        table.add_column(heading, justify="right", no_wrap=True)
    for summary in summaries:
        table.add_row(summary["policy"], f"{summary['preemptions']:,}", *swap_cells(summary))
    return table


def print_comparison(result: Mapping[str, Any], notices: Sequence[Notice], out: str) -> None:
    """What was run, the tables, what must not be overlooked, assumptions, and the verdict last.

    `result` is the object of comparison.json, `out` where the report is.
    """
    console = plain_console()
    for line in header_lines(result):
        say(console, line)
    console.print()
    print_table(console, memory_table(result["policies"]))
    console.print()
    print_table(console, request_table(result["policies"]))
    if any_swapped(result["policies"]):
        console.print()
        print_table(console, swap_table(result["policies"]))
    for _, name, meaning in LATENCIES[:3]:
        say(console, f"{name}: {meaning}", "dim")
    say(console, f"Loaded window: {LOADED_WINDOW}", "dim")
    say(console, "Largest run: longest run of adjacent free slots, % of all free slots", "dim")
    console.print()
    for notice in notices:
        say(console, f"{notice.kind}: {notice.text}", "bold" if notice.serious else "dim")
    for note in result["notes"]:
        say(console, f"Note: {note}", "dim")
    say(console, f"Report: {out}")
    if result["held_by"]:
        say(console, result["held_by"])
    say(console, result["verdict"], "bold")


def plain_console() -> Console:
    """A terminal's width; a pipe has none, so that nothing is cut off there."""
    console = Console(highlight=False, markup=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, markup=False, width=PIPE_WIDTH_COLUMNS)


def say(console: Console, line: str = "", style: str = "none") -> None:
    """A line of text: broken between words at a terminal, whole in a pipe."""
    console.print(line, style=style, soft_wrap=not console.is_terminal)


def print_table(console: Console, table: Table) -> None:
    """Print a plain table of strings; columns for which the console is too narrow follow below it.

    They stand beside the names of the rows again, because half a number is worse than none.
    """
    first, *others = table.columns
    title, shown, width = str(table.title), [first], _width(first)
    for column in others:
        wider = width + GAP_COLUMNS + _width(column)
        if wider > console.width and len(shown) > 1:
            console.print(_of_columns(title, shown), end="\n\n")
            title, shown, wider = "", [first], _width(first) + GAP_COLUMNS + _width(column)
        shown, width = [*shown, column], wider
    console.print(_of_columns(title, shown))


def _width(column: Column) -> int:
    texts = (str(column.header), *map(str, column.cells))
    return max(len(line) for text in texts for line in text.split("\n"))


def _of_columns(title: str, columns: Sequence[Column]) -> Table:
    first, *others = columns
    part = plain_table(title, str(first.header))
    for column in others:
        part.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap)
    for cells in zip(*(column.cells for column in columns), strict=True):
        part.add_row(*cells)
    return part


def plain_table(title: str, first_column: str) -> Table:
    """A table without frame whose first column names the rows."""
    # GAP_COLUMNS spaces between columns and none around, to fit into WIDTH_COLUMNS.
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    table.add_column(first_column, no_wrap=True)
    return table
