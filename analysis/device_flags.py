"""The flags that say what to execute on, and in which shape, shared by the verbs that execute."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtwin.traces import UserError

if TYPE_CHECKING:
    from kvtwin.gpu.check import Backend


def _flag(help_text: str, metavar: str) -> Any:
    return typer.Option(
        help=help_text, metavar=metavar, rich_help_panel="Execution", show_default=False
    )


@dataclass(frozen=True)
class DeviceFlags:
    """None where nothing was said. What of the model is executed; its other numbers stay as they are."""

    device: Annotated[
        str | None, _flag("cuda or cpu (default: cuda if there is one).", "DEVICE")
    ] = None
    backend: Annotated[
        str,
        _flag(
            "auto, torch or triton (default auto: triton on cuda, torch on cpu, where triton is its "
            "interpreter).",
            "NAME",
        ),
    ] = "auto"
    layers: Annotated[int | None, _flag("Layers to execute (default: the model's).", "N")] = None
    heads: Annotated[int | None, _flag("Query heads (default: the model's).", "N")] = None
    kv_heads: Annotated[
        int | None, _flag("KV heads (default: as --heads, or the model's).", "N")
    ] = None
    head_dim: Annotated[int | None, _flag("Channels of a head (default: the model's).", "N")] = None

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "kv_heads", "head_dim"):
            value = getattr(self, name)
            if value is not None and value < 1:
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} is {value}; it must be at least 1")


@contextmanager
def opened_backend(flags: DeviceFlags) -> Iterator["Backend"]:
    """What the flags ask for, ready inside. Raises UserError where it is not here."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy reads it when it is first imported
    from kvtwin.gpu.errors import INSTALL, UnavailableError

    try:
        from kvtwin.gpu.devices import choose_device
    except ModuleNotFoundError as error:
        raise UserError(
            f"to execute, {error.name} is needed, which is not installed: {INSTALL}"
        ) from error
    try:
        device = choose_device(flags.device)
        if device == "cpu" and flags.backend == "triton":
            os.environ["TRITON_INTERPRET"] = "1"  # likewise triton

        from kvtwin.gpu.twin.backend import open_backend
        from kvtwin.gpu.twin.clock import keep_freed_memory

        if device == "cpu":
            keep_freed_memory()
        with open_backend(device, flags.backend) as found:
            yield found
    except UnavailableError as error:
        raise UserError(str(error)) from error
