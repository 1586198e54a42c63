"""`kvtwin calibrate`: step times measured here, or by a server's clients, as a file for --cost."""

from pathlib import Path
from typing import Annotated, Any

import typer

from kvtwin.traces import UserError

from ..device_flags import DeviceFlags
from ..options import JsonOption, takes_flags_of


def _grid(help_text: str, metavar: str) -> Any:
    return typer.Option(help=help_text, metavar=metavar, rich_help_panel="Steps to measure", min=1)


def _bench(help_text: str, metavar: str) -> Any:
    return typer.Option(
        help=help_text, metavar=metavar, rich_help_panel="Steps that a server's clients saw"
    )


@takes_flags_of(DeviceFlags)
def calibrate(
    flags: DeviceFlags,
    model: Annotated[str, typer.Option(help="Model of the catalogue.", metavar="NAME")],
    out: Annotated[Path, typer.Option(help="Coefficients file to write.", metavar="FILE")],
    kv_cache_dtype: Annotated[
        str, typer.Option(help="auto (16 bits), float16 or bfloat16.", metavar="TYPE")
    ] = "auto",
    block_size: Annotated[int, _grid("Token slots per block.", "N")] = 16,
    max_num_seqs: Annotated[int, _grid("Largest batch of decodes.", "N")] = 64,
    max_context: Annotated[int, _grid("Longest context of a sequence.", "TOKENS")] = 512,
    max_slots: Annotated[int, _grid("Most slots that the sequences of a step hold.", "N")] = 32768,
    max_num_batched_tokens: Annotated[
        int, _grid("Most tokens of a step; with --from-bench, the server's budget of a step.", "N")
    ] = 2048,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Stop measuring after so long.", metavar="S", rich_help_panel="Steps to measure"
        ),
    ] = None,
    from_bench: Annotated[
        Path | None,
        _bench("Result of vllm bench serve --save-detailed: fit to it, execute nothing.", "FILE"),
    ] = None,
    gpu: Annotated[str | None, _bench("What the server ran on, for the record.", "NAME")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace --out.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Fit step times to measured steps, and write a file for --cost.

    Steps are those that kvtwin validate executes, measured here, or those of a server, reconstructed
    from when its clients got their tokens. docs/validation.md says what either can tell.
    """
    from kvtwin.traces import whole_file

    from ..calibration import fit_here, fit_lines, fit_served
    from ..printing import print_json

    if from_bench is not None and flags != DeviceFlags():
        raise UserError(
            f"--from-bench {from_bench} executes nothing; leave out the flags of execution"
        )
    if from_bench is None and gpu is not None:
        raise UserError(f"--gpu {gpu} is for --from-bench; what is measured here says its own name")
    if seconds is not None and not seconds > 0:
        raise UserError(f"--seconds is {seconds:g}; it must be above 0")
    # Before anything is measured: the name must be free.
    with whole_file(out, force=force) as file:
        left_out: list[str] = []
        if from_bench is not None:
            cost, fit, left_out = fit_served(from_bench, model, gpu, max_num_batched_tokens)
        else:
            limits = {
                "max_num_seqs": max_num_seqs,
                "max_context": max_context,
                "max_num_batched_tokens": max_num_batched_tokens,
                "max_slots": max_slots,
            }
            cost, fit = fit_here(flags, model, kv_cache_dtype, block_size, limits, seconds)
        file.write(cost.to_json().encode())
    if as_json:
        print_json({"cost": cost.to_dict(), "left_out": left_out})
        return
    assert cost.fit is not None
    print(
        f"{cost.fit.num_points:,} steps on {cost.fit.device} ({cost.fit.backend}, {cost.fit.dtype})"
    )
    print("\n".join([*fit_lines(cost, fit), *left_out]))
    print(f"Wrote {out}; use it with --cost {out}.")
