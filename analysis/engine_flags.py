"""How the flags of an engine are spelled and read, once for all verbs that have them."""

from collections.abc import Callable
from typing import Any

import typer

from kvtwin.traces import UserError

PANEL = "Model, GPU and engine (named after vLLM's flags)"
# Numbers that may be 8k: sim/setting_values.py, which help does not load.
_HUMAN_READABLE = ("max_model_len", "max_num_batched_tokens", "kv_cache_memory_bytes")
_SHORT = {
    "tensor_parallel_size": "-tp",
    "pipeline_parallel_size": "-pp",
    "data_parallel_size": "-dp",
    "quantization": "-q",
}


def engine_flag(
    name: str, help_text: str, metavar: str = "N", *others: str, panel: str = PANEL
) -> Any:
    """The flag for the field `name`, with vLLM's short form and reading. `others`: what other engines call it."""
    spellings = [_long(name), *([_SHORT[name]] if name in _SHORT else []), *others]
    return typer.Option(
        *spellings,
        help=help_text,
        metavar=metavar,
        rich_help_panel=panel,
        show_default=False,
        parser=_count_of(name) if name in _HUMAN_READABLE else None,
    )


def engine_switch(name: str, help_text: str) -> Any:
    """The two flags for the field `name`, as vLLM's."""
    flag = _long(name).removeprefix("--")
    return typer.Option(
        f"--{flag}/--no-{flag}", help=help_text, rich_help_panel=PANEL, show_default=False
    )


def _long(name: str) -> str:
    return "--" + name.replace("_", "-")


def _count_of(name: str) -> Callable[[str], int]:
    def count(text: str) -> int:
        from kvtwin.sim.setting_values import read_count

        try:
            return read_count(name, text)
        except ValueError as error:
            raise UserError(f"{_long(name)} {error}") from error

    return count
