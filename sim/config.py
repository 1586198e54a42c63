"""The configuration of one run. Its fields are named after vLLM's flags."""

import dataclasses
import hashlib
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtwin.traces import UserError

from .catalog import find_gpu, find_model
from .model import KV_DTYPE_BYTES
from .names import did_you_mean

_CHOICES = {
    "kv_cache_dtype": tuple(KV_DTYPE_BYTES),
    "admission": ("step", "full"),
    "fit": ("first", "best"),
    "sample_lengths": ("independent", "equal"),
    "preemption_mode": ("auto", "recompute", "swap"),
    "scheduling_policy": ("fcfs", "priority"),
    "free_order": ("front", "back"),
}
_LARGEST_SWAP_SPACE = 1 << 20  # GiB
_SHARES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "gpu_memory_utilization": ("above 0 and at most 1", lambda share: 0 < share <= 1),
    "watermark": ("at least 0 and below 1", lambda share: 0 <= share < 1),
    "swap_space": (
        f"GiB, at least 0 and at most {_LARGEST_SWAP_SPACE:,}",
        lambda gib: 0 <= gib <= _LARGEST_SWAP_SPACE,
    ),
}
_SMALLEST = {
    "tensor_parallel_size": 1,
    "num_gpu_blocks_override": 1,
    "kv_cache_memory_bytes": 1,
    "block_size": 1,
    "max_model_len": 1,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "seed": 0,
    "growth_tokens": 1,
    "max_tokens": 1,
    "num_samples": 1,
    "beam_width": 1,
    "swap_copy_ns": 0,
    "long_prefill_token_threshold": 0,
}
_SWITCHES = {
    "compaction",
    "closed_loop",
    "disable_hybrid_kv_cache_manager",
    "enable_chunked_prefill",
    "async_scheduling",
}
_OPTIONAL = {
    "num_gpu_blocks_override",
    "kv_cache_memory_bytes",
    "max_model_len",
    "max_tokens",
    "num_samples",
    "watermark",
}
_MOST_SEQUENCES = 1000  # of a request
_LARGEST = 10**15  # of any whole number: sums of such numbers stay far inside 64 bits
_CONSTANT_COST = re.compile(r"constant:([1-9][0-9]{0,11})")  # ns, below 1,000 s


@dataclass(frozen=True)
class RunConfig:
    """What one policy is run with.

    `model` and `gpu` take any name that the catalogue knows and hold the catalogue's own.
    `num_gpu_blocks_override` goes before `kv_cache_memory_bytes`, and that before
    `gpu_memory_utilization`. `max_model_len` None: the model's. `kv_cache_dtype` auto: 16 bits.
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
            if problem := _problem(field.name, getattr(self, field.name)):
                raise UserError(f"{_flag(field.name)} {problem}")
        for name in _SHARES:  # a file may say 1 for 1.0; run.json must not tell them apart
            if getattr(self, name) is not None:
                object.__setattr__(self, name, float(getattr(self, name)))
        model = find_model(self.model)
        object.__setattr__(self, "model", model.name)
        object.__setattr__(self, "gpu", find_gpu(self.gpu).name)
        model.check_tensor_parallel(self.tensor_parallel_size)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UserError(
                f"--max-num-batched-tokens is {self.max_num_batched_tokens}; it must be at least "
                f"--max-num-seqs ({self.max_num_seqs}), because each running sequence decodes a "
                f"token in every step"
            )
        for name in ("num_samples", "beam_width"):
            if (getattr(self, name) or 1) > _MOST_SEQUENCES:
                raise UserError(
                    f"{_flag(name)} is {getattr(self, name)}; it must be at most {_MOST_SEQUENCES:,}"
                )
        if self.beam_width > 1 and (self.num_samples or 1) > 1:
            raise UserError(
                f"--beam-width is {self.beam_width} and --num-samples is {self.num_samples}; a request "
                "is either searched by beams or sampled: leave one out"
            )
        if self.max_model_len is not None and self.max_model_len > model.max_model_len:
            raise UserError(
                f"--max-model-len is {self.max_model_len}; {model.name} has positions for at most "
                f"{model.max_model_len} tokens"
            )

    @classmethod
    def from_toml(cls, path: str | Path | None, **overrides: Any) -> "RunConfig":
        """The configuration in a TOML file whose keys are the fields, in snake or kebab case.

        Overrides go before the file's values unless they are None. Path None: overrides alone. A
        relative cost file is looked for beside the configuration file. Raises UserError naming
        file, line and key.
        """
        values = {} if path is None else _read(Path(path))
        values |= {name: value for name, value in overrides.items() if value is not None}
        for name in ("model", "gpu"):
            if name not in values:
                where = "" if path is None else f" and no key {name} in {path}"
                raise UserError(f"no {_flag(name)} given{where}; give one, e.g. {_EXAMPLES[name]}")
        return cls(**values)

    @property
    def cost_file(self) -> Path | None:
        """Path of the coefficients file, or None where `cost` is not a file."""
        return Path(self.cost) if _is_file(self.cost) else None

    @property
    def constant_cost_ns(self) -> int | None:
        """NS of `constant:NS`, or None."""
        match = _CONSTANT_COST.fullmatch(self.cost)
        return int(match[1]) if match else None

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


def read_user_file(path: Path, flag: str) -> bytes:
    """Content of a file the user named with `flag`. Raises UserError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{flag} {path}: cannot be read: {error.strerror or error}") from error


def _is_file(cost: str) -> bool:
    return cost != "roofline" and not _CONSTANT_COST.fullmatch(cost)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _problem(name: str, value: object) -> str | None:
    """What is wrong with one value, to follow the name of its flag or key; None if nothing is."""
    if value is None and name in _OPTIONAL:
        return None
    if name in _SMALLEST:
        # bool is an int to Python, but `block_size = true` is a mistake.
        if not isinstance(value, int) or isinstance(value, bool):
            return f"is {value!r}; it must be a whole number"
        if value < _SMALLEST[name]:
            return f"is {value}; it must be at least {_SMALLEST[name]}"
        return "is too large; it must be at most 10^15" if value > _LARGEST else None
    if name in _SHARES:
        limits, holds = _SHARES[name]
        if not isinstance(value, int | float) or isinstance(value, bool):
            return f"is {value!r}; it must be a number {limits}"
        return None if holds(value) else f"is {value}; it must be {limits}"
    if name in _SWITCHES:
        return None if isinstance(value, bool) else f"is {value!r}; it must be true or false"
    if not isinstance(value, str) or not value:
        return f"is {value!r}; it must be a text"
    if name in _CHOICES and value not in _CHOICES[name]:
        hint = did_you_mean(value, _CHOICES[name])
        return f"is {value!r}{hint}; it must be one of {', '.join(_CHOICES[name])}"
    if name == "cost" and value.startswith("constant:") and not _CONSTANT_COST.fullmatch(value):
        return f"is {value!r}; after constant: it must have a whole number of ns, from 1 to 999,999,999,999"
    return None


def _read(path: Path) -> dict[str, Any]:
    content = read_user_file(path, "--config")
    try:
        text = content.decode()
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # wrong text, syntax, endless digits or depth
        raise UserError(f"{path}: not a TOML file: {error}") from error
    values: dict[str, Any] = {}
    for key, value in raw.items():
        where, name = f"{path}{_line(text, key)}", key.replace("-", "_")
        if name not in _FIELDS:
            raise UserError(f"{where}: unknown key {key}{did_you_mean(name, _FIELDS)}")
        if name in values:
            raise UserError(
                f"{where}: key {key} is given twice, in snake and in kebab case; keep one"
            )
        if problem := _problem(name, value):
            raise UserError(f"{where}: {key} {problem}")
        values[name] = value
    if _is_file(values.get("cost", "roofline")):
        values["cost"] = str(path.parent / values["cost"])
    return values


def _line(text: str, key: str) -> str:
    """`:N` for the line on which a top-level key or table of a TOML text begins, else empty."""
    start = re.compile(rf"\s*\[*\s*[\"']?{re.escape(key)}[\"']?\s*[\].=]")
    for number, line in enumerate(text.splitlines(), start=1):
        if start.match(line):
            return f":{number}"
    return ""
