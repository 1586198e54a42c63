"""Which values settings may have, and how they are written: one rule for flags, files and Python."""

import re
from collections.abc import Callable

from kvtwin.traces import UserError

from .model import FP8_FORMATS, KV_DTYPE_BYTES
from .names import did_you_mean

AUTO_LENGTH = -1  # `--max-model-len auto`: the longest that fits, as vLLM has it
# Multiples behind a number of vLLM's (`human_readable_int`): decimal in lower case, binary in upper case.
MULTIPLES = {
    **{letter: 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{letter: 1024**power for power, letter in enumerate("KMGT", start=1)},
}
# Settings that take them, in vLLM and here.
HUMAN_READABLE = ("max_model_len", "max_num_batched_tokens", "kv_cache_memory_bytes")
_CHOICES = {
    "kv_cache_dtype": (*KV_DTYPE_BYTES, *FP8_FORMATS),
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
NUMBERS = tuple(_SHARES)
_SMALLEST = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
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
    "enforce_eager",
    "async_scheduling",
}
_OPTIONAL = {
    "num_gpu_blocks_override",
    "kv_cache_memory_bytes",
    "max_model_len",
    "max_tokens",
    "num_samples",
    "quantization",
    "watermark",
}
_LARGEST = 10**15  # of any whole number: sums of such numbers stay far inside 64 bits
# Of what is more than any engine was started with.
_LARGEST_OF = {
    "tensor_parallel_size": 4096,
    "pipeline_parallel_size": 4096,
    "data_parallel_size": 4096,
    "block_size": 10**6,
}
_CONSTANT_COST = re.compile(r"constant:([1-9][0-9]{0,11})")  # ns, below 1,000 s


def flag_of(name: str) -> str:
    """`--max-model-len` of `max_model_len`."""
    return "--" + name.replace("_", "-")


def read_count(name: str, text: str) -> int:
    """What `text` says for a HUMAN_READABLE setting, as vLLM takes it.

    8k is 8,000, 8K is 8,192, 25.6k is 25,600; `auto` is AUTO_LENGTH, for max_model_len. Raises ValueError saying
    what is wrong, to follow the name of the flag or key.
    """
    said = text.strip()
    if name == "max_model_len" and said.casefold() == "auto":
        return AUTO_LENGTH
    found = re.fullmatch(r"([0-9]+)(\.[0-9]+)?([kKmMgGtT])", said)
    if found is not None and found[2] and found[3].isupper():
        lower = found[1] + found[2] + found[3].lower()
        raise ValueError(f"is {text!r}; {found[3]} takes whole numbers only: use {lower}")
    try:
        if found is None:
            return int(said)
        number = float(found[1] + found[2]) if found[2] else int(found[1])
        return int(number * MULTIPLES[found[3]])
    except (ValueError, OverflowError):
        raise ValueError(
            f"is {text!r}; it must be a whole number, also as 8k (8,000) or 8K (8,192)"
        ) from None


def check_value(name: str, value: object) -> None:
    """Raise UserError naming the flag of a setting if its value is not allowed."""
    if problem := value_problem(name, value):
        raise UserError(f"{flag_of(name)} {problem}")


def value_problem(name: str, value: object) -> str | None:
    """What is wrong with one value, to follow the name of its flag or key; None if nothing is."""
    if value is None and name in _OPTIONAL:
        return None
    if name in _SMALLEST:
        # bool is an int to Python, but `block_size = true` is a mistake.
        if not isinstance(value, int) or isinstance(value, bool):
            return f"is {value!r}; it must be a whole number"
        if name == "max_model_len" and value == AUTO_LENGTH:
            return "is auto; a run needs the number: `kvtwin size --max-model-len auto` says the longest that fits"
        if value < _SMALLEST[name]:
            return f"is {value}; it must be at least {_SMALLEST[name]}"
        if value > _LARGEST_OF.get(name, _LARGEST):
            most = f"{_LARGEST_OF[name]:,}" if name in _LARGEST_OF else "10^15"
            return f"is too large; it must be at most {most}"
        return None
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
    if name == "cost" and value.startswith("constant:") and constant_cost_ns(value) is None:
        return f"is {value!r}; after constant: it must have a whole number of ns, from 1 to 999,999,999,999"
    return None


def constant_cost_ns(cost: str) -> int | None:
    """NS of `constant:NS`, or None where `cost` is something else."""
    match = _CONSTANT_COST.fullmatch(cost)
    return int(match[1]) if match else None


def check_step(num_seqs: int, num_tokens: int, usual_tokens: int) -> None:
    """Raise UserError where a step of `num_tokens` tokens at most cannot serve `num_seqs` sequences.

    `usual_tokens`: the default, with which it is the sequences that were changed.
    """
    if num_tokens >= num_seqs:
        return
    why = "because each running sequence decodes a token in every step"
    if num_tokens == usual_tokens:
        raise UserError(
            f"--max-num-seqs is {num_seqs}; it must be at most --max-num-batched-tokens ({num_tokens}), {why}"
        )
    raise UserError(
        f"--max-num-batched-tokens is {num_tokens}; it must be at least --max-num-seqs ({num_seqs}), {why}"
    )
