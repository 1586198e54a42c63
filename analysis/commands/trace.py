"""`kvtwin trace`: look at, generate and convert request traces."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtwin.traces import FORMATS, WORKLOADS, WRITABLE_FORMATS

from ..options import JsonOption

if TYPE_CHECKING:
    from kvtwin.traces import LengthSummary, TraceSummary

app = typer.Typer(
    help="Look at, generate and convert request traces.",
    rich_markup_mode=None,
)

PathArgument = Annotated[Path, typer.Argument(help="Trace file.", metavar="PATH")]
FormatOption = Annotated[
    str | None,
    typer.Option(
        help=f"Format of PATH: {', '.join(FORMATS)} (default: found from its content).",
        metavar="NAME",
        show_default=False,
    ),
]
OutOption = Annotated[Path, typer.Option(help="File to write.", metavar="FILE")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace --out if it exists.")]


@app.command()
def info(
    path: PathArgument,
    format: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what a trace holds: requests, arrivals, lengths."""
    from dataclasses import asdict

    from kvtwin.traces import describe, open_trace

    from ..printing import print_json

    summary = describe(open_trace(path, format))
    if as_json:
        print_json(asdict(summary) | {"verdict": _verdict(summary)})
        return
    print("\n".join(_info_lines(summary)))
    print(_verdict(summary))


@app.command()
def synth(
    workload: Annotated[str, typer.Option(help=f"One of: {', '.join(WORKLOADS)}.", metavar="NAME")],
    num_requests: Annotated[int, typer.Option(help="Requests to generate.", metavar="N")],
    seed: Annotated[int, typer.Option(help="Seed of everything random.", metavar="S")],
    out: OutOption,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests per second (default: all at once).", metavar="R"),
    ] = None,
    burstiness: Annotated[
        float, typer.Option(help="Gamma shape of the arrivals; 1 is Poisson.", metavar="B")
    ] = 1.0,
    force: ForceOption = False,
) -> None:
    """Generate a trace and write it to a file.

    The format is kvtwin-csv, or kvtwin-parquet if FILE ends in .parquet.
    """
    from kvtwin.traces import describe, synthesize, write_trace

    trace = synthesize(workload, num_requests, seed, rate=rate, burstiness=burstiness)
    format = "kvtwin-parquet" if out.suffix == ".parquet" else "kvtwin-csv"
    write_trace(trace, out, format, force=force)
    print("\n".join(_info_lines(describe(trace))))
    for part, lengths in (
        ("prompt", WORKLOADS[workload].prompt),
        ("output", WORKLOADS[workload].output),
    ):
        fitted = "" if not lengths.cv_fitted else " (fitted)"
        print(
            f"  asked of {part}s: mean {lengths.mean:g} tokens, CV {lengths.cv:g}{fitted},"
            " before clipping"
        )
    print(f"clipped requests   {trace.num_clipped:,}")
    print(f"wrote {trace.num_requests:,} requests of {workload}, seed {seed}, to {out} ({format})")


@app.command()
def convert(
    path: PathArgument,
    to: Annotated[
        str,
        typer.Option(help=f"Format to write: {', '.join(WRITABLE_FORMATS)}.", metavar="FORMAT"),
    ],
    out: OutOption,
    format: FormatOption = None,
    num_requests: Annotated[
        int | None, typer.Option(help="Only the first N requests.", metavar="N")
    ] = None,
    rate_scale: Annotated[
        float | None, typer.Option(help="Arrivals F times as fast.", metavar="F")
    ] = None,
    force: ForceOption = False,
) -> None:
    """Write a trace in another format, shortened or sped up on request."""
    from kvtwin.traces import open_trace, write_trace

    whole = open_trace(path, format)
    trace = whole if num_requests is None else whole.head(num_requests)
    if rate_scale is not None:
        trace = trace.scale_rate(rate_scale)
    lost = write_trace(trace, out, to, force=force)
    for reason, number in trace.skipped.items():
        print(f"  skipped while reading {path}: {number:,} x {reason}")
    for what in lost:
        print(f"  not written: {what}, which {to} cannot carry")
    print(
        f"wrote {trace.num_requests:,} of {whole.num_requests:,} requests"
        f" from {path} ({whole.format}) to {out} ({to})"
    )


def _info_lines(summary: "TraceSummary") -> list[str]:
    skipped = ", ".join(f"{number:,} x {reason}" for reason, number in summary.skipped.items())
    lines = [
        f"trace              {summary.name} ({summary.format})",
        f"requests           {summary.num_requests:,}",
        f"skipped rows       {skipped or 'none'}",
        f"span               {summary.span_s:,.3f} s, {summary.num_distinct_arrivals:,} different"
        " arrival times",
    ]
    if summary.rate is None:
        lines.append("rate               none: saturated, all requests arrive at one instant")
    else:
        lines.append(f"rate               {summary.rate:,.4g} requests/s")
        lines.append(f"inter-arrival CV   {summary.interarrival_cv:.2f} (1 is a Poisson process)")
    lines += [
        f"max_tokens         given for {summary.num_with_max_tokens:,} requests",
        "content ids        "
        + (
            "none"
            if summary.content_block_tokens is None
            else f"one for each {summary.content_block_tokens} prompt tokens"
        ),
        _length_line("prompt tokens", summary.prompt),
        _length_line("output tokens", summary.output),
    ]
    return lines


def _length_line(title: str, lengths: "LengthSummary") -> str:
    return (
        f"{title:<19}mean {lengths.mean:,.1f}  p50 {lengths.p50:,.0f}  p90 {lengths.p90:,.0f}"
        f"  p99 {lengths.p99:,.0f}  max {lengths.max:,}"
    )


def _verdict(summary: "TraceSummary") -> str:
    if summary.rate is None:
        arrivals = "saturated"
    else:
        arrivals = f"{summary.rate:,.3g} requests/s over {summary.span_s:,.0f} s"
    return (
        f"{summary.num_requests:,} requests, {arrivals},"
        f" {summary.prompt.mean:,.0f} prompt and {summary.output.mean:,.0f} output tokens each"
        " on average."
    )
