"""`kvtwin run`: one policy, one run directory."""

from pathlib import Path
from typing import Annotated

import typer

from ..options import ForceOption, Inputs, JsonOption, OutOption, takes_inputs


@takes_inputs
def run(
    inputs: Inputs,
    policy: Annotated[
        str | None,
        typer.Option(help="Policy, see kvtwin policies (default paged).", metavar="NAME"),
    ] = None,
    out: OutOption = Path("out/run"),
    snapshots: Annotated[
        bool, typer.Option("--snapshots", help="Record who holds which slots over time.")
    ] = False,
    decisions: Annotated[
        bool, typer.Option("--decisions", help="Record every grant, extension, move and free.")
    ] = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run one policy on a trace and write a run directory."""
    from kvtwin.sim import simulate

    from ..no_pandas import without_pandas
    from ..output_dir import check_output_dir, replacing
    from ..printing import print_json
    from ..run_block import run_lines
    from ..setting import load_config, load_trace
    from ..verdict import run_verdict

    without_pandas()
    config = load_config(inputs, policy=policy)
    check_output_dir(out, force=force)
    trace = load_trace(inputs, config.seed)
    with replacing(out, force=force) as staging:
        summary = simulate(
            trace,
            config,
            staging,
            snapshots=snapshots,
            decisions=decisions,
            paranoid=inputs.paranoid,
        )
    if as_json:
        print_json({"config": config.to_dict(), "summary": summary})
        return
    print("\n".join(run_lines(summary)))
    print(f"Run directory: {out}")
    print(run_verdict(summary))
