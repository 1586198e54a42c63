"""Known models and GPUs: shapes and figures with their sources (data in catalog.toml)."""

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kvtwin.traces import UserError

from .names import did_you_mean, name_key, name_parts

# 'auto' keeps the KV cache in the 16 bits that every model of the catalogue computes in.
KV_DTYPE_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1}


@dataclass(frozen=True)
class ModelSpec:
    """Shape of one model. Sizes in elements; bytes say so.

    `mla_latent_dim`: elements of the one latent vector that multi-head latent attention keeps per
    token and layer in place of K and V; 0 for every other attention. `sliding_window` (0: none) is
    kept as a fact, for `num_window_layers` of the layers. `ffn_size` is per expert,
    `num_active_experts` counts shared experts, 1 if dense.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    max_model_len: int
    num_params: int
    num_active_params: int
    weight_bytes: int
    source: str
    mla_latent_dim: int = 0
    sliding_window: int = 0
    num_window_layers: int = 0
    num_active_experts: int = 1
    aliases: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        assert self.num_heads % self.num_kv_heads == 0, (
            self.name,
            self.num_heads,
            self.num_kv_heads,
        )
        assert 0 < self.num_active_params <= self.num_params, (self.name, self.num_active_params)
        assert 0 <= self.num_window_layers <= self.num_layers, (self.name, self.num_window_layers)
        assert (self.sliding_window > 0) == (self.num_window_layers > 0), self.name

    def check_tensor_parallel(self, tensor_parallel_size: int) -> None:
        """Raise UserError unless the heads divide over the ranks (vLLM's rule).

        KV heads may be fewer than ranks: each is then held by equally many.
        """
        if self.num_heads % tensor_parallel_size:
            raise UserError(
                f"--tensor-parallel-size is {tensor_parallel_size}; it must divide the "
                f"{self.num_heads} attention heads of {self.name}"
            )
        many, few = (
            max(self.num_kv_heads, tensor_parallel_size),
            min(self.num_kv_heads, tensor_parallel_size),
        )
        if not self.mla_latent_dim and many % few:
            raise UserError(
                f"--tensor-parallel-size is {tensor_parallel_size}; it must divide or be a "
                f"multiple of the {self.num_kv_heads} KV heads of {self.name}"
            )

    def kv_bytes_per_token(self, kv_cache_dtype: str, tensor_parallel_size: int) -> int:
        """KV bytes of one token over all layers on one rank.

        2 (K and V) x KV heads on the rank x head_dim x layers x bytes an element; a rank holds at
        least one KV head. With latent attention: mla_latent_dim x layers x bytes, the same on every
        rank (DeepSeek-V2 report, Table 1). Layers with a sliding window count in full (see
        `window_note`).
        """
        element_bytes = KV_DTYPE_BYTES[kv_cache_dtype]
        if self.mla_latent_dim:
            return self.mla_latent_dim * self.num_layers * element_bytes
        kv_heads = max(1, self.num_kv_heads // tensor_parallel_size)
        return 2 * kv_heads * self.head_dim * self.num_layers * element_bytes

    @property
    def window_note(self) -> str:
        """What a reader must know about a sliding window; empty where there is none."""
        if not self.sliding_window:
            return ""
        return (
            f"{self.num_window_layers} of the {self.num_layers} layers of {self.name} attend to "
            f"the last {self.sliding_window} tokens only; no policy here credits that: every "
            f"layer's KV is kept in full, so an engine that frees it behind the window holds more "
            f"requests"
        )


@dataclass(frozen=True)
class GpuSpec:
    """One GPU: bytes, bytes/s, dense FLOP/s. Links are one way.

    `nvlink_bytes_per_s` is 0 where there is none.     `mfu_prefill`, `mfu_decode`: share of
    `bf16_flops_per_s` that prefill and decode reach (source: `mfu_source`).
    """

    name: str
    memory_bytes: int
    hbm_bytes_per_s: int
    bf16_flops_per_s: int
    pcie_bytes_per_s: int
    mfu_prefill: float
    mfu_decode: float
    mfu_source: str
    source: str
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
def models() -> tuple[ModelSpec, ...]:
    """Every model of the catalogue, in its order."""
    return tuple(_model(row) for row in _rows()["models"])


@functools.cache
def gpus() -> tuple[GpuSpec, ...]:
    """Every GPU of the catalogue, in its order."""
    return tuple(GpuSpec(**_frozen(row)) for row in _rows()["gpus"])


def find_model(name: str) -> ModelSpec:
    """The model of that name or alias, without regard to case, separators and organisation.

    Leading parts are enough where only one model has them. Raises UserError for unknown and
    ambiguous names.
    """
    return _find("model", name, models())


def find_gpu(name: str) -> GpuSpec:
    """The GPU of that name or alias, matched as `find_model` does.

    `h100` is H100-SXM; `a100` is ambiguous.
    """
    return _find("gpu", name, gpus())


def _frozen(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "aliases": tuple(row.get("aliases", ()))}


def _model(row: dict[str, Any]) -> ModelSpec:
    in_16_bits = {"num_active_params": row["num_params"], "weight_bytes": 2 * row["num_params"]}
    return ModelSpec(**{**in_16_bits, **_frozen(row)})


_Spec = TypeVar("_Spec", bound=ModelSpec | GpuSpec)


def _find(flag: str, name: str, specs: tuple[_Spec, ...]) -> _Spec:
    key = name_key(name)
    for spec in specs:
        if key in map(name_key, (spec.name, *spec.aliases)):
            return spec
    # Whole parts only: `llama-3.1` may stand for a name that begins so, `opt-1` must not become
    # OPT-13B.
    parts = name_parts(name)
    fits = [spec for spec in specs if parts and _starts_with(name_parts(spec.name), key)]
    if len(fits) == 1:
        return fits[0]
    if fits:
        several = ", ".join(spec.name for spec in fits)
        raise UserError(
            f"--{flag} {name} is ambiguous: it may be {several}; give one of these names"
        )
    hint = did_you_mean(name, [alias for spec in specs for alias in (spec.name, *spec.aliases)])
    known = ", ".join(spec.name for spec in specs)
    raise UserError(f"--{flag} {name} is not in the catalogue{hint}; known are: {known}")


def _starts_with(parts: list[str], key: str) -> bool:
    return any(key == "".join(parts[:count]) for count in range(1, len(parts)))
