"""Known models and GPUs: shapes and figures with their sources (data in catalog.toml)."""

import functools
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvtwin.traces import UserError

from .checkpoint import model_from_config, quantize
from .model import ModelSpec
from .names import did_you_mean, name_key, name_parts

# How files name what their weights were quantised to, and what `--quantization` calls it.
_QUANTIZED_SUFFIXES = {
    "fp8": "fp8",
    "fp8-dynamic": "fp8",
    "fp8-block": "fp8-block",
    "int8": "int8",
    "w8a8": "int8",
    "quantized-w8a8": "int8",
    "awq": "awq",
    "awq-int4": "awq",
    "gptq": "gptq",
    "gptq-int4": "gptq",
    "int4": "w4a16",
    "w4a16": "w4a16",
    "quantized-w4a16": "w4a16",
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
    "bnb-4bit": "bitsandbytes",
}
_OTHER_GPUS = "; for others `kvtwin size` takes --gpu-memory-gib"


@dataclass(frozen=True)
class GpuMemory:
    """What sizing needs to know of a GPU: its bytes, as the driver reports them, and who says so.

    `cuda_memory_bytes`: what CUDA reports, which is less and what engines budget from; None where
    nobody stated it.
    """

    name: str
    memory_bytes: int
    source: str
    cuda_memory_bytes: int | None = field(default=None, kw_only=True)
    cuda_memory_source: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class GpuSpec(GpuMemory):
    """One GPU: bytes, bytes/s, dense FLOP/s. Links are one way.

    `nvlink_bytes_per_s` is 0 where there is none. `mfu_prefill`, `mfu_decode`: share of
    `bf16_flops_per_s` that prefill and decode reach (source: `mfu_source`).
    """

    hbm_bytes_per_s: int
    bf16_flops_per_s: int
    pcie_bytes_per_s: int
    mfu_prefill: float
    mfu_decode: float
    mfu_source: str
    fp8_flops_per_s: int | None = None
    nvlink_bytes_per_s: int = 0
    aliases: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        for share in (self.mfu_prefill, self.mfu_decode):
            assert 0 < share <= 1, (self.name, share)


@functools.cache
def _rows() -> dict[str, Any]:
    with Path(__file__).with_name("catalog.toml").open("rb") as file:
        return tomllib.load(file)


@functools.cache
def _entries(table: str) -> dict[str, dict[str, Any]]:
    """Rows by name, each followed by its variants, which have the row's fields and then their own."""
    entries: dict[str, dict[str, Any]] = {}
    for row in _rows()[table]:
        plain = {**row, "aliases": tuple(row.get("aliases", ()))}
        variants = plain.pop("variants", ())
        entries[row["name"]] = plain
        for own in variants:
            config = {**row["config"], **own["config"]}
            entries[own["name"]] = {**plain, "aliases": (), "note": "", **own, "config": config}
    return entries


@functools.cache
def models() -> tuple[ModelSpec, ...]:
    """Every row of the models, in its order, without the variants.

    `find_model` builds one model and is far quicker.
    """
    return tuple(_model(row["name"]) for row in _rows()["models"])


@functools.cache
def gpus() -> tuple[GpuSpec, ...]:
    """Every GPU of the catalogue, in its order."""
    return tuple(_gpu(row["name"]) for row in _rows()["gpus"])


def find_model(name: str) -> ModelSpec:
    """The model of that name or alias, without regard to case, separators and organisation.

    A variant is found by its own name. Leading parts are enough where only one row has them. Raises
    UserError for unknown and ambiguous names; one of a known model's quantised files is told apart.
    """
    try:
        return _model(_find("model", name))
    except UserError:
        if (meant := _quantized(name)) is None:
            raise
        model, quantization = meant
        raise UserError(
            f"--model {name} is not in the catalogue, which has models as they are first shipped; use "
            f"--model {model.lower()} --quantization {quantization}"
        ) from None


def find_gpu(name: str) -> GpuSpec:
    """The GPU of that name or alias, matched as `find_model` does.

    `h100` is H100-SXM; `a100` is ambiguous.
    """
    return _gpu(_find("gpu", name, _OTHER_GPUS))


@functools.cache
def _gpu(name: str) -> GpuSpec:
    return GpuSpec(**_entries("gpus")[name])


@functools.cache
def _model(name: str) -> ModelSpec:
    fields = dict(_entries("models")[name])
    config = fields.pop("config")
    return model_from_config(config, where=f"catalog.toml: {name}", **fields)


def _find(flag: str, name: str, otherwise: str = "") -> str:
    """The catalogue's own name of what a user calls `name`.

    `otherwise`: what else to do where it has none.
    """
    table = f"{flag}s"
    spellings = {known: (known, *entry["aliases"]) for known, entry in _entries(table).items()}
    key = name_key(name)
    for known, spelled in spellings.items():
        if key in map(name_key, spelled):
            return known
    # Whole parts only: `llama-3.1` may stand for a name that begins so, `opt-1` must not become
    # OPT-13B.
    parts = name_parts(name)
    rows: list[str] = [row["name"] for row in _rows()[table]]
    fits = [known for known in rows if parts and _starts_with(name_parts(known), key)]
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise UserError(
            f"--{flag} {name} is ambiguous: it may be {', '.join(fits)}; give one of these names"
        )
    hint = did_you_mean(name, [spelling for spelled in spellings.values() for spelling in spelled])
    raise UserError(
        f"--{flag} {name} is not in the catalogue{hint}; known are: {', '.join(rows)}{otherwise}"
    )


def _quantized(name: str) -> tuple[str, str] | None:
    """The catalogue's name of a model and the quantization that `name` asks for, if it is known and can be made so."""
    parts = name_parts(name)
    for cut in range(1, len(parts)):
        quantization = _QUANTIZED_SUFFIXES.get("-".join(parts[cut:]))
        if quantization is None:
            continue
        try:
            known = _find("model", "-".join(parts[:cut]))
            quantize(_model(known), quantization)
        except UserError:  # unknown, ambiguous, or shipped quantised
            continue
        return known, quantization
    return None


def _starts_with(parts: list[str], key: str) -> bool:
    return any(key == "".join(parts[:count]) for count in range(1, len(parts)))
