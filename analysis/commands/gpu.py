"""`kvtwin gpu`: are the kernels right, and how fast are they?"""

import os
from typing import Annotated

import typer

from kvtwin.traces import UserError

from ..options import JsonOption

# Of kvtwin.gpu.check.KERNELS, in words, because help loads neither torch nor triton.
KERNEL_HELP = (
    "paged_decode, contiguous_decode, paged_prefill, store_kv, merge_partials, copy_blocks or "
    "swap_blocks; may be given several times (default: all)."
)

app = typer.Typer(
    help="Check the paged-attention kernels, and time them on a GPU.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def check(
    quick: Annotated[
        bool, typer.Option("--quick", help="A few cases of every kernel instead of all.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(help="cuda or cpu (default: cuda if there is one).", metavar="DEVICE"),
    ] = None,
    kernel: Annotated[list[str] | None, typer.Option(help=KERNEL_HELP, metavar="NAME")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the kernels with a float64 reference and exact probes; exit code 1 if any fails.

    On a CPU the kernels run in Triton's interpreter, with every memory access checked and counted,
    and the torch operations beside them; only those where triton is not installed. Each line names
    what ran.
    """
    device = _choose(device)
    if device == "cpu":
        # Triton and numpy read these when they are first imported.
        os.environ["TRITON_INTERPRET"] = "1"
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from kvtwin.gpu.check import KERNELS, backends, run_all
    from kvtwin.gpu.errors import INSTALL, UnavailableError
    from kvtwin.gpu.report import CHECK_HEADER, check_line, check_summary

    from ..printing import print_json

    chosen = list(dict.fromkeys(kernel or KERNELS))
    for name in chosen:
        if name not in KERNELS:
            raise UserError(f"--kernel {name}: no such kernel; choose from {', '.join(KERNELS)}")
    results = []
    try:
        with backends(device) as found:
            if all(backend.name == "torch" for backend in found):
                typer.echo(
                    "triton is not installed, so the kernels are not checked, only the torch operations; "
                    f"{INSTALL}",
                    err=True,
                )
            if not as_json:
                print(CHECK_HEADER)
            for result in run_all(found, chosen, quick=quick):
                results.append(result)
                if not as_json:
                    print(check_line(result), flush=True)
    except UnavailableError as error:
        raise UserError(str(error)) from error
    if as_json:
        print_json({"device": device, "results": [result.to_dict() for result in results]})
    else:
        print(f"\n{check_summary(results)}")
    if not all(result.passed for result in results):
        raise typer.Exit(1)


@app.command()
def bench(as_json: JsonOption = False) -> None:
    """Time decode on a GPU: bytes per second, against contiguous KV and torch's attention.

    A timing that fails is a line on stderr, and the next one runs; exit code 1 then.
    """
    if _choose(None) != "cuda":
        raise UserError(
            "gpu bench needs a CUDA device and torch finds none; gpu check runs without one"
        )
    from kvtwin.gpu.bench import bench_shapes, run_bench, time_on_gpu
    from kvtwin.gpu.check import backends
    from kvtwin.gpu.errors import UnavailableError
    from kvtwin.gpu.report import BENCH_HEADER, bench_line

    from ..printing import print_json

    rows = []
    failures = []

    def failed(configuration: str, error: Exception) -> None:
        failures.append(configuration)
        message = " ".join(str(error).split())
        typer.echo(f"FAILED: {configuration}: {type(error).__name__}: {message}", err=True)

    try:
        with backends("cuda"):
            if not as_json:
                print(BENCH_HEADER)
            for row in run_bench(bench_shapes(), "cuda", time_on_gpu, failed=failed):
                rows.append(row)
                if not as_json:
                    print(bench_line(row), flush=True)
    except UnavailableError as error:
        raise UserError(str(error)) from error
    if as_json:
        print_json({"rows": [row.to_dict() for row in rows]})
    if failures:
        raise typer.Exit(1)


def _choose(device: str | None) -> str:
    """The device to use. Raises UserError where there is none, or nothing to use it with."""
    from kvtwin.gpu.errors import INSTALL, UnavailableError

    try:
        from kvtwin.gpu.devices import choose_device
    except ModuleNotFoundError as error:
        raise UserError(
            f"kvtwin gpu needs {error.name}, which is not installed: {INSTALL}"
        ) from error
    try:
        return choose_device(device)
    except UnavailableError as error:
        raise UserError(str(error)) from error
