"""`kvtwin explain`: why a number is what it is."""

from pathlib import Path
from typing import Annotated

import typer

from ..options import JsonOption, takes_flags_of
from ..trace_flags import TraceFlags, check_size, read_trace

app = typer.Typer(
    help="Say why a number is what it is.",
    rich_markup_mode=None,
)


@app.callback()
def _explain() -> None:
    """A callback keeps `hits` a verb of its own while it is the only one."""


@app.command()
@takes_flags_of(TraceFlags)
def hits(
    flags: TraceFlags,
    path: Annotated[Path, typer.Argument(help="Trace file or folder.", metavar="TRACE")],
    block_size: Annotated[int, typer.Option(help="Tokens of a block.", metavar="N")] = 16,
    num_gpu_blocks_override: Annotated[
        int | None, typer.Option(help="Blocks of the cache (default: without end).", metavar="N")
    ] = None,
    num_requests: Annotated[
        int | None, typer.Option(help="Only the first N requests.", metavar="N")
    ] = None,
    seed: Annotated[
        int,
        typer.Option(help="Seed of --sample and of formats that are distributions.", metavar="S"),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Say what a prefix cache could hit of a trace's prompts, and what is lost on the way.

    To the size of blocks, to the last token, which is always computed, to capacity, and to eviction order.
    """
    from kvtwin.traces.hit_losses import find_hit_losses

    from ..hit_losses import loss_facts, loss_lines
    from ..no_pandas import without_pandas
    from ..printing import print_json

    without_pandas()
    check_size("block-size", block_size)
    check_size("num-gpu-blocks-override", num_gpu_blocks_override)
    trace = read_trace(path, flags, num_requests, seed)
    losses = find_hit_losses(trace, block_size, num_gpu_blocks_override)
    if as_json:
        print_json(loss_facts(losses))
    else:
        print("\n".join(loss_lines(losses)))
