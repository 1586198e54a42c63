"""Lines of text for results: Markdown tables, which read well on a terminal too."""

from .bench import BenchRow
from .check import Result

CHECK_HEADER = (
    "| backend | kernel | configuration | error | tolerance | bytes | verdict |\n"
    "|---|---|---|---:|---:|---:|---|"
)
BENCH_HEADER = (
    "| operation | seqs x context | block | heads | splits | bytes | µs | GB/s | of read bandwidth |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
)
NOT_MEASURED = "not measured on a GPU"


def check_line(result: Result) -> str:
    """One row under CHECK_HEADER."""
    num_bytes = "not counted" if result.num_bytes is None else f"{result.num_bytes:,}"
    return (
        f"| {result.backend} | {result.kernel} | {result.configuration} | {result.error:.2g} | "
        f"{result.tolerance:.2g} | {num_bytes} | {result.verdict} |"
    )


def bench_line(row: BenchRow) -> str:
    """One row under BENCH_HEADER."""
    where = ["", "", ""]
    if row.shape:
        where = [
            f"{row.shape.num_seqs} x {row.shape.context_len:,}",
            str(row.shape.block_size) if row.operation == "paged_decode" else "",
            f"{row.shape.num_heads}/{row.shape.num_kv_heads}",
        ]
    rate = row.bytes_per_s
    if row.duration_ns is None or rate is None:
        figures = [NOT_MEASURED] * 3
    else:
        share = "" if row.share is None else f"{row.share:.1%}"
        if row.fits_l2:
            share += " (L2 helps)"
        figures = [f"{row.duration_ns / 1e3:,.1f}", f"{rate / 1e9:,.0f}", share]
    splits = "" if row.num_splits is None else str(row.num_splits)
    cells = [row.operation, *where, splits, f"{row.num_bytes:,}", *figures]
    return f"| {' | '.join(cells)} |"


def check_summary(results: list[Result]) -> str:
    """What ran, and how much of it failed, in a sentence."""
    names = " and ".join(dict.fromkeys(result.backend for result in results))
    failed = sum(not result.passed for result in results)
    verdict = f"{failed} of them FAILED" if failed else "all passed"
    where = "" if "cuda" in names else f"; {NOT_MEASURED}"
    return f"{len(results)} checks on {names}: {verdict}{where}."
