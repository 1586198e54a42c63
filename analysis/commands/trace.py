"""`kvtwin trace`: look at, generate and convert request traces."""

from pathlib import Path
from typing import Annotated

import typer

from kvtwin.traces import WORKLOADS, WRITABLE_FORMATS

from ..options import JsonOption, takes_flags_of
from ..trace_flags import TraceFlags, read_trace

app = typer.Typer(
    help="Look at, generate and convert request traces.",
    rich_markup_mode=None,
)

PathArgument = Annotated[Path, typer.Argument(help="Trace file or folder.", metavar="TRACE")]
SeedOption = Annotated[
    int, typer.Option(help="Seed of --sample and of formats that are distributions.", metavar="S")
]
OutOption = Annotated[Path, typer.Option(help="File to write.", metavar="FILE")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace --out if it exists.")]


@app.command()
@takes_flags_of(TraceFlags)
def info(
    flags: TraceFlags,
    path: PathArgument,
    block_size: Annotated[
        int, typer.Option(help="Tokens of a block for a second hit rate.", metavar="N")
    ] = 16,
    num_requests: Annotated[
        int | None, typer.Option(help="Only the first N requests.", metavar="N")
    ] = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Print what a trace holds.

    Requests, arrivals, lengths, sessions, and how much of the prompts a prefix cache would have held.
    """
    from kvtwin.traces import UserError, describe, describe_file

    from ..no_pandas import without_pandas
    from ..printing import print_json
    from ..trace_info import info_facts, info_lines, verdict

    without_pandas()
    if block_size < 1:
        raise UserError(f"--block-size is {block_size}; it must be at least 1")
    if num_requests is not None or flags.changes_the_trace:
        summary = describe(read_trace(path, flags, num_requests, seed), block_size)
    else:
        summary = describe_file(path, flags.format, flags.options(seed), block_size)
    if as_json:
        print_json(info_facts(summary))
        return
    print("\n".join(info_lines(summary)))
    print(verdict(summary))


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

    from ..trace_info import info_lines

    trace = synthesize(workload, num_requests, seed, rate=rate, burstiness=burstiness)
    format = "kvtwin-parquet" if out.suffix == ".parquet" else "kvtwin-csv"
    write_trace(trace, out, format, force=force)
    print("\n".join(info_lines(describe(trace))))
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
@takes_flags_of(TraceFlags)
def convert(
    flags: TraceFlags,
    path: PathArgument,
    to: Annotated[
        str,
        typer.Option(help=f"Format to write: {', '.join(WRITABLE_FORMATS)}.", metavar="FORMAT"),
    ],
    out: OutOption,
    num_requests: Annotated[
        int | None, typer.Option(help="Only the first N requests.", metavar="N")
    ] = None,
    seed: SeedOption = 0,
    force: ForceOption = False,
) -> None:
    """Write a trace in another format.

    In part or at another speed on request.
    """
    from kvtwin.traces import write_trace

    from ..no_pandas import without_pandas

    without_pandas()
    trace = read_trace(path, flags, num_requests, seed)
    lost = write_trace(trace, out, to, force=force)
    for reason, number in trace.skipped.items():
        print(f"  skipped while reading {path}: {number:,} x {reason}")
    for note in trace.notes:
        print(f"  note: {note}")
    for what in lost:
        print(f"  not written: {what}, which {to} cannot carry")
    print(f"wrote {trace.num_requests:,} requests from {path} ({trace.format}) to {out} ({to})")
