"""`kvtwin trace`: look at, generate and convert request traces."""

from pathlib import Path
from typing import Annotated

import typer

from kvtwin.traces import WORKLOADS, WRITABLE_FORMATS

from ..generated import MixFlags, asked_lines
from ..options import JsonOption, takes_flags_of
from ..trace_flags import TraceFlags, check_size, read_trace

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
    out: Annotated[
        Path | None, typer.Option(help="SVG figure to write.", metavar="FILE.svg")
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print what a trace holds.

    Requests, arrivals, lengths, sessions, and how much of the prompts a prefix cache would have held.
    """
    from kvtwin.traces import UserError, describe, describe_file, whole_file

    from ..no_pandas import without_pandas
    from ..printing import print_json
    from ..trace_info import info_facts, info_lines, verdict

    without_pandas()
    check_size("block-size", block_size)
    if out is not None and out.suffix != ".svg":
        raise UserError(f"--out {out}: the figure is an SVG; name a file that ends in .svg")
    if out is not None or num_requests is not None or flags.changes_the_trace:
        trace = read_trace(path, flags, num_requests, seed)
        summary = describe(trace, block_size)
        if out is not None:
            from ..figures.trace_page import trace_page
            from ..trace_shape import shape_of

            with whole_file(out, force=force) as file:
                file.write(trace_page(shape_of(trace)))
    else:
        summary = describe_file(path, flags.format, flags.options(seed), block_size)
    if as_json:
        print_json(info_facts(summary))
        return
    print("\n".join(info_lines(summary)))
    print(verdict(summary))


@app.command()
@takes_flags_of(MixFlags)
def synth(
    mix: MixFlags,
    num_requests: Annotated[int, typer.Option(help="Requests to generate.", metavar="N")],
    seed: Annotated[int, typer.Option(help="Seed of everything random.", metavar="S")],
    out: OutOption,
    workload: Annotated[
        str | None,
        typer.Option(
            help=f"One of: {', '.join(WORKLOADS)}; or --prompt and --output.", metavar="NAME"
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Requests per second, the mean over all phases of --arrivals, or inf: all at once (default).",
            metavar="R",
        ),
    ] = None,
    burstiness: Annotated[
        float | None,
        typer.Option(
            help="Gamma shape of a workload's arrivals; 1 (default) is Poisson.", metavar="B"
        ),
    ] = None,
    force: ForceOption = False,
) -> None:
    """Generate a trace and write it to a file.

    The format is kvtwin-csv, or kvtwin-parquet if FILE ends in .parquet, which also holds shared prompts and sessions.
    """
    from kvtwin.traces import UserError, describe, synthesize, write_trace

    from ..no_pandas import without_pandas
    from ..trace_info import info_lines

    without_pandas()
    if (workload is None) != mix.is_asked_for:
        raise UserError("give either --workload, or --prompt and --output with what goes with them")
    if workload is not None:
        shape = 1.0 if burstiness is None else burstiness
        trace = synthesize(workload, num_requests, seed, rate=rate, burstiness=shape)
    elif burstiness is not None:
        raise UserError("--burstiness is for --workload; write --arrivals gamma:SHAPE")
    else:
        trace = mix.generate(out.stem, rate, num_requests, seed)
    format = "kvtwin-parquet" if out.suffix == ".parquet" else "kvtwin-csv"
    lost = write_trace(trace, out, format, force=force)
    print("\n".join(info_lines(describe(trace))))
    if workload is not None:
        print("\n".join(asked_lines(workload)))
    print(f"clipped requests   {trace.num_clipped:,}")
    for what in lost:
        print(f"  not written: {what}, which {format} cannot carry; write a .parquet")
    what = workload or "generated"
    print(f"wrote {trace.num_requests:,} requests of {what}, seed {seed}, to {out} ({format})")


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
