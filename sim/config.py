"""The configuration of one run. Its fields are named after vLLM's flags."""

import dataclasses
import functools
import hashlib
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtwin.traces import UserError

from .catalog import find_gpu, find_model
from .checkpoint import quantize
from .model import ModelSpec, kv_dtype
from .names import meant_setting
from .setting_values import (
    HUMAN_READABLE,
    NUMBERS,
    check_step,
    check_value,
    constant_cost_ns,
    flag_of,
    read_count,
    value_problem,
)
from .vllm_flags import Elsewhere, names_refused, said_elsewhere

_MOST_SEQUENCES = 1000  # of a request


@dataclass(frozen=True)
class RunConfig:
    """What one policy is run with.

    `model` and `gpu` take any name that the catalogue knows and hold the catalogue's own.
    `num_gpu_blocks_override` goes before `kv_cache_memory_bytes`, and that before
    `gpu_memory_utilization`. `max_model_len` None: the model's. `kv_cache_dtype` auto: 16 bits.
    `quantization`: what the weights, shipped in 16 bits, become (a key of QUANTIZATIONS). `enforce_eager`: no memory
    for CUDA graphs.
    `watermark`: share of the pool that admissions leave free; None: the policy's own. `growth_tokens`: slots by which a
    contiguous sequence grows. `max_tokens`: cap on every request's output. `cost`: `roofline`,
    `constant:NS` (every step lasts NS ns) or the path of a coefficients file.
    `num_samples`: outputs asked of every prompt; None: what the trace says, else 1. `sample_lengths` of the
    further ones: `independent` or `equal` (see `samples.py`). `beam_width` above 1: a beam search instead.
    `preemption_mode`: `recompute`, `swap`, or `auto`, by number of sequences. `swap_space`: GiB of host memory
    per GPU. `swap_copy_ns`: cost of each copy between host and device, beside its bytes.
    `closed_loop`: calls of a session come after those they wait for have ended in the run, not as recorded.
    `scheduling_policy`: `fcfs` or `priority`, which the trace must say. `long_prefill_token_threshold`: most tokens of
    a prompt in a step, 0: no limit of its own. `free_order`: where blocks without reusable content join the free
    queue, `front` as in vLLM 0.32 or `back` as before. `disable_hybrid_kv_cache_manager`: all layers of vllm-v1 in one
    group, windows stored in full.
    Raises UserError naming the flag.
    """

    model: str
    gpu: str
    tensor_parallel_size: int = 1
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = 0.92
    block_size: int = 16
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    enforce_eager: bool = False
    seed: int = 0
    policy: str = "paged"
    admission: str = "full"
    watermark: float | None = None
    growth_tokens: int = 16
    fit: str = "first"
    compaction: bool = False
    max_tokens: int | None = None
    num_samples: int | None = None
    sample_lengths: str = "independent"
    beam_width: int = 1
    preemption_mode: str = "auto"
    swap_space: float = 4.0  # as vLLM's
    # Assumed: a small asynchronous copy takes some microseconds to issue. Not measured.
    swap_copy_ns: int = 5000
    scheduling_policy: str = "fcfs"
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    async_scheduling: bool = False
    free_order: str = "front"
    disable_hybrid_kv_cache_manager: bool = False
    cost: str = "roofline"
    closed_loop: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_value(field.name, getattr(self, field.name))
        for name in NUMBERS:  # a file may say 1 for 1.0; run.json must not tell them apart
            if getattr(self, name) is not None:
                object.__setattr__(self, name, float(getattr(self, name)))
        object.__setattr__(self, "kv_cache_dtype", kv_dtype(self.kv_cache_dtype))
        model = self.model_spec
        object.__setattr__(self, "model", model.name)
        object.__setattr__(self, "gpu", find_gpu(self.gpu).name)
        model.check_tensor_parallel(self.tensor_parallel_size)
        usual_tokens = type(self).max_num_batched_tokens
        check_step(self.max_num_seqs, self.max_num_batched_tokens, usual_tokens)
        for name in ("num_samples", "beam_width"):
            if (getattr(self, name) or 1) > _MOST_SEQUENCES:
                raise UserError(
                    f"{flag_of(name)} is {getattr(self, name)}; it must be at most {_MOST_SEQUENCES:,}"
                )
        if self.beam_width > 1 and (self.num_samples or 1) > 1:
            raise UserError(
                f"--beam-width is {self.beam_width} and --num-samples is {self.num_samples}; a request "
                "is either searched by beams or sampled: leave one out"
            )
        if self.max_model_len is not None:
            model.check_max_model_len(self.max_model_len)

    @classmethod
    def from_toml(
        cls, path: str | Path | None, flags: Collection[str] = (), **overrides: Any
    ) -> "RunConfig":
        """The configuration in a TOML file whose keys are the fields, in snake or kebab case.

        Overrides go before the file's values unless they are None. Path None: overrides alone. A
        relative cost file is looked for beside the configuration file. `flags`: names that are flags but no fields,
        for the message where a file has one. Raises UserError naming file, line and key.
        """
        return cls.from_settings(read_settings(path, flags, **overrides))

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "RunConfig":
        """The configuration of what `read_settings` found, and defaults.

        Where only `max_num_batched_tokens` is given, `max_num_seqs` is not above it.
        """
        values = dict(settings)
        num_tokens = values.get("max_num_batched_tokens")
        if num_tokens is not None and num_tokens > 0:  # vLLM lowers its default likewise
            values.setdefault("max_num_seqs", min(cls.max_num_seqs, num_tokens))
        return cls(**values)

    @property
    def model_spec(self) -> ModelSpec:
        """The model, with its weights as `quantization` stores them."""
        return _model_spec(self.model, self.quantization)

    @property
    def cost_file(self) -> Path | None:
        """Path of the coefficients file, or None where `cost` is not a file."""
        return Path(self.cost) if _is_file(self.cost) else None

    @property
    def constant_cost_ns(self) -> int | None:
        """NS of `constant:NS`, or None."""
        return constant_cost_ns(self.cost)

    def to_dict(self) -> dict[str, Any]:
        """JSON types in the order of the fields.

        A cost file is named without its folder, with the sha256 of its content.
        """
        values = dataclasses.asdict(self)
        if self.cost_file is not None:
            content = read_user_file(self.cost_file, "--cost")
            values["cost"] = {
                "file": self.cost_file.name,
                "sha256": hashlib.sha256(content).hexdigest(),
            }
        return values


_EXAMPLES = {"model": "--model opt-13b", "gpu": "--gpu a100-40gb"}
_FIELDS = {field.name: field.type for field in dataclasses.fields(RunConfig)}


def read_settings(
    path: str | Path | None, flags: Collection[str] = (), **overrides: Any
) -> dict[str, Any]:
    """What is said of a configuration, by field: see `RunConfig.from_toml`."""
    values = {} if path is None else _read(Path(path), flags)
    values |= {name: value for name, value in overrides.items() if value is not None}
    for name in ("model", "gpu"):
        if name not in values:
            where = "" if path is None else f" and no key {name} in {path}"
            raise UserError(f"no {flag_of(name)} given{where}; give one, e.g. {_EXAMPLES[name]}")
    return values


def read_user_file(path: Path, flag: str) -> bytes:
    """Content of a file the user named with `flag`. Raises UserError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{flag} {path}: cannot be read: {error.strerror or error}") from error


def _is_file(cost: str) -> bool:
    return cost != "roofline" and constant_cost_ns(cost) is None


@functools.cache
def _model_spec(name: str, quantization: str | None) -> ModelSpec:
    try:
        model = find_model(name)
    except UserError:
        if Path(name).suffix == ".json" or Path(name).is_dir():
            raise UserError(
                f"--model {name} is a file, which kvtwin size reads; a run takes a name of the catalogue, e.g. "
                "opt-13b"
            ) from None
        raise
    return model if quantization is None else quantize(model, quantization)


def _read(path: Path, flags: Collection[str]) -> dict[str, Any]:
    content = read_user_file(path, "--config")
    try:
        text = content.decode()
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # wrong text, syntax, endless digits or depth
        raise UserError(f"{path}: not a TOML file: {error}") from error
    unknown = {
        key: _otherwise(key.replace("-", "_"), flags)
        for key in raw
        if key.replace("-", "_") not in _FIELDS
    }
    if unknown:
        where, plural = f"{path}{_line(text, next(iter(unknown)))}", "s" if len(unknown) > 1 else ""
        raise UserError(f"{where}: unknown key{plural} {names_refused(unknown)}")
    values: dict[str, Any] = {}
    for key, value in raw.items():
        where, name = f"{path}{_line(text, key)}", key.replace("-", "_")
        if name in values:
            raise UserError(
                f"{where}: key {key} is given twice, in snake and in kebab case; keep one"
            )
        if name in HUMAN_READABLE and isinstance(value, str):
            try:
                value = read_count(name, value)
            except ValueError as error:
                raise UserError(f"{where}: {key} {error}") from error
        if problem := value_problem(name, value):
            raise UserError(f"{where}: {key} {problem}")
        values[name] = value
    if _is_file(values.get("cost", "roofline")):
        values["cost"] = str(path.parent / values["cost"])
    return values


def _otherwise(name: str, flags: Collection[str]) -> Elsewhere:
    """What to write instead of a key that is no field."""
    if name in flags:
        return Elsewhere(f"give it on the command line: {flag_of(name)}")
    return said_elsewhere(name) or Elsewhere(meant_setting(name, _FIELDS))


def _line(text: str, key: str) -> str:
    """`:N` for the line on which a top-level key or table of a TOML text begins, else empty."""
    start = re.compile(rf"\s*\[*\s*[\"']?{re.escape(key)}[\"']?\s*[\].=]")
    for number, line in enumerate(text.splitlines(), start=1):
        if start.match(line):
            return f":{number}"
    return ""
