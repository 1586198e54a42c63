"""Lines of text for results: Markdown tables, which read well on a terminal too."""

from collections.abc import Iterator
from typing import Any

from kvtwin.sim.cost import SHIFT

from .bench import BenchRow
from .check import Result
from .twin.validation import PolicyValidation

CHECK_HEADER = (
    "| backend | kernel | configuration | error | tolerance | bytes | verdict |\n"
    "|---|---|---|---:|---:|---:|---|"
)
BENCH_HEADER = (
    "| operation | seqs x context | block | heads | splits | bytes | µs | GB/s | of read bandwidth |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
)
VALIDATION_HEADER = (
    "| trace | policy | backend | judged predictions that hold | findings | step time error (noise) | "
    "makespan | TTFT | TPOT | verdict |\n"
    "|---|---|---|---:|---:|---:|---:|---:|---:|---|"
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


def calibration_lines(cost: dict[str, Any]) -> Iterator[str]:
    """A fitted model, as its file has it: coefficients and errors."""
    (term,) = cost["terms"]
    fit = cost["fit"]
    yield "| for each | µs |\n|---|---:|"
    for name, units in {"step": term["constant"], **term["coefficients"]}.items():
        yield f"| {name} | {units / 2**SHIFT / 1e3:,.4g} |"
    yield ""
    for name, key in (
        ("in sample", "in_sample"),
        ("on steps left out of the fit", "cross_validated"),
        ("noise of repeats", "noise"),
    ):
        if error := fit.get(key):
            yield f"- {name}: mean {error['mean']:.1%}, 95th percentile {error['p95']:.1%}"
    yield from (f"- {note}" for note in cost["notes"])


def validation_line(trace: str, result: PolicyValidation) -> str:
    """One row under VALIDATION_HEADER; times are predicted -> measured."""
    judged = [p for p in result.predictions if p.passed is not None]
    by_name = {p.name: p for p in result.predictions if p.kind == "time"}
    error = by_name.get("mean step time error")
    cells = ["-" if error is None else f"{error.measured:.1f} % ({_of(error.noise)} %)"]
    for name in ("makespan", "mean TTFT", "mean TPOT"):
        made = by_name.get(name)
        cells.append("-" if made is None else f"{made.predicted:,.2f} -> {_of(made.measured)} ms")
    return (
        f"| {trace} | {result.policy} | {result.backend} | {sum(p.passed is True for p in judged)} of "
        f"{len(judged)} | {len(result.findings)} | {' | '.join(cells)} | "
        f"{'pass' if result.passed else 'FAIL'} |"
    )


def validation_failures(trace: str, result: PolicyValidation) -> Iterator[str]:
    """A line for each prediction that failed, and each finding."""
    for p in result.predictions:
        if p.passed is False:
            yield (
                f"- {trace}, {result.policy}: {p.name}: predicted {_of(p.predicted)}, measured "
                f"{_of(p.measured)} {p.unit}, tolerance {_of(p.tolerance)}"
            )
    for finding in result.findings:
        yield f"- {trace}, {result.policy}: {finding}"


def _of(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"
