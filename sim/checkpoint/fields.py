"""The fields of a config.json, checked as they are read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from kvtwin.traces import UserError

MAX_JSON_BYTES = 64 * 2**20  # the index of a checkpoint of 90,000 tensors has 9 MB
# Other spellings of a field, in the order in which they are looked for.
_SPELLINGS = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "d_model"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
    "intermediate_size": ("ffn_dim", "n_inner", "ffn_hidden_size"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "moe_topk", "moe_top_k", "moe_k"),
    "num_shared_experts": ("n_shared_experts", "moe_num_shared_experts"),
    "dtype": ("torch_dtype",),
    "sliding_window_pattern": ("_sliding_window_pattern", "full_attention_interval"),
    "mamba_n_heads": ("mamba_num_heads",),
    "mamba_d_head": ("mamba_head_dim",),
    "mamba_n_groups": ("n_groups",),
    "mamba_d_state": ("ssm_state_size",),
    "mamba_d_conv": ("conv_kernel",),
    "mamba_conv_bias": ("use_conv_bias",),
    "mamba_proj_bias": ("use_bias",),
    "mamba_ssm_cache_dtype": ("mamba_ssm_dtype",),
}


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises UserError naming the file."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise UserError(
                f"{path}: has {path.stat().st_size:,} bytes; at most {MAX_JSON_BYTES:,} are read"
            )
        return parse_json(path.read_bytes(), str(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


def parse_json(raw: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `raw`. Raises UserError that begins with `where`."""

    def refuse(name: str) -> NoReturn:
        raise UserError(f"{where}: {name} is no JSON number; write a finite one")

    try:
        values = json.loads(raw, parse_constant=refuse)
    except RecursionError:
        raise UserError(f"{where}: is nested too deeply to be read") from None
    except ValueError as error:  # bad JSON, bad UTF-8, and numbers of thousands of digits
        raise UserError(f"{where}: is not JSON: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"{where}: holds a JSON {_kind(values)}; it must hold an object")
    return values


class Fields:
    """Typed access to one JSON object. `where` begins every complaint.

    Null is the same as absent. `defaults`: what the model's class fills in for absent fields.
    """

    def __init__(
        self, values: Mapping[str, Any], where: str, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.values, self.where, self.defaults = values, where, defaults or {}

    def of_class(self, defaults: Mapping[str, Any], overrides: Mapping[str, Any]) -> "Fields":
        """The same with what the model's class makes of them."""
        return Fields({**self.values, **overrides}, self.where, defaults)

    def get(self, name: str, default: Any = None) -> Any:
        """The raw value under any spelling of `name`."""
        for spelling in (name, *_SPELLINGS.get(name, ())):
            if self.values.get(spelling) is not None:
                return self.values[spelling]
        return self.defaults.get(name, default)

    def has(self, name: str) -> bool:
        return self.get(name) is not None

    def whole(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = 2**24
    ) -> int:
        """A whole number of `least` to `most`. Raises UserError if it is absent without default."""
        value = self.get(name, default)
        if value is None:
            self.missing(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self._refuse(name, value, f"must be a whole number of {least:,} to {most:,}")
        if not least <= value <= most:
            self._refuse(name, value, f"must be {least:,} to {most:,}")
        return value

    def number(self, name: str, default: float, *, least: float, most: float) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(name, "must be a number")
        if not least <= value <= most:
            self.refuse(name, f"must be {least:g} to {most:g}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            self.refuse(name, "must be true or false")
        return value

    def text(self, name: str, default: str = "") -> str:
        value = self.get(name, default)
        if not isinstance(value, str):
            self.refuse(name, "must be a string")
        return value

    def array(self, name: str) -> list[Any]:
        """An array; empty if absent."""
        value = self.get(name, [])
        if not isinstance(value, list):
            self.refuse(name, "must be an array")
        return value

    def table(self, name: str) -> "Fields | None":
        """The object under `name`, or None if absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(name, "must be an object")
        return Fields(value, f"{self.where}: {name}")

    def refuse(self, name: str, must: str) -> NoReturn:
        """Raise UserError about the value of `name`."""
        self._refuse(name, self.get(name), must)

    def _refuse(self, name: str, value: Any, must: str) -> NoReturn:
        raise UserError(f"{self.where}: {name} is {_shown(value)}; it {must}")

    def missing(self, name: str) -> NoReturn:
        """Raise UserError: `name` is needed."""
        also = " or ".join(_SPELLINGS.get(name, ()))
        raise UserError(
            f"{self.where}: {name}{f' (or {also})' if also else ''} is missing; add it to the file"
        )


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return f"a JSON {_kind(value)}"
    try:
        text = json.dumps(value)
    except ValueError:  # a number of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 40 else f"{text[:40]}..."


def _kind(value: Any) -> str:
    kinds = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")
