"""What an engine's start-up log fills in: settings, and the memory that it states."""

import re
from dataclasses import replace

from kvtwin.sim.sizing.accounting import Accounting
from kvtwin.sim.sizing.deployment import Deployment, Given
from kvtwin.sim.sizing.engine_log import LogFacts, Stated
from kvtwin.sim.sizing.estimates import gpu_memory_terms
from kvtwin.sim.sizing.terms import sum_bytes
from kvtwin.traces import UserError

from .options import SizeInputs

VLLM_BLOCK_SIZE = 16
OF_MEMORY = (
    "weights_gib",
    "activation_gib",
    "cuda_graph_gib",
    "other_gib",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
)
# Less than this left for the activations is not rounding: the GPU or the model is another one.
LEAST_LEFT_BYTES = -(2**29)
# Before, the estimate was printed and the pool cut without it.
FIRST_TO_SET_GRAPHS_ASIDE = (0, 21)
NEWEST = (10**6, 0)
FIRST_WITH_092 = (0, 20)  # vLLM's default fraction; 0.90 before (0.19.1 prints it)
# Of settings that a log states: more than any engine was started with.
LARGEST = {
    "tensor_parallel_size": 4096,
    "pipeline_parallel_size": 4096,
    "data_parallel_size": 4096,
    "block_size": 10**6,
    "max_num_seqs": 10**6,
    "max_num_batched_tokens": 10**8,
    "max_model_len": 10**12,
    "num_gpu_blocks_override": 10**12,
}
# What engines call the ways that --quantization knows.
QUANTIZATIONS = {
    "awq": "awq",
    "awq_marlin": "awq",
    "gptq": "gptq",
    "gptq_marlin": "gptq",
    "fp8": "fp8",
    "bitsandbytes": "bitsandbytes",
    "mxfp4": "mxfp4",
}
_COUNTS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
)


def with_log(inputs: SizeInputs, log: LogFacts) -> SizeInputs:
    """The deployment that `log` is of: what it states, and flags where it is silent.

    The memory fraction only where the accounting is that of the log's engine, because each means
    something else by it. What flags say of memory is about what is asked for, not about the log.
    """
    stated: dict[str, object] = dict.fromkeys(OF_MEMORY)
    if inputs.accounting is None:
        stated["accounting"] = log.engine
    for name in _COUNTS:
        reading = getattr(log, name)
        if reading is not None:
            stated[name] = reading.whole
    if log.num_gpu_blocks_override is not None and _is_overridden(log):
        stated["num_gpu_blocks_override"] = log.num_gpu_blocks_override.whole
    if log.model is not None and inputs.model is None:
        stated["model"] = log.model.value
    length = log.max_model_len or log.concurrency_at
    if length is not None:
        stated["max_model_len"] = length.whole
    if log.kv_cache_dtype is not None:
        stated["kv_cache_dtype"] = _dtype(log.kv_cache_dtype.value)
    if log.enforce_eager is not None:
        stated["enforce_eager"] = log.enforce_eager.value == "True"
    if _is_of_engine(inputs, log) and (log.engine == "vllm" or log.memory_utilization is not None):
        stated["gpu_memory_utilization"] = _utilization(log)
    return replace(inputs, **stated)  # type: ignore[arg-type]


def _utilization(log: LogFacts) -> float | None:
    """The fraction that counted; None: the engine's present default.

    The budget that vLLM prints has more digits than the fraction. A log prints a fraction that was
    set, so a flag beside a log without one asks for another.
    """
    if log.budget is not None and log.total_memory is not None:
        return float(log.budget.value / log.total_memory.value)
    if log.memory_utilization is not None:
        return float(log.memory_utilization.value)
    old = log.engine == "vllm" and version_of(log) < FIRST_WITH_092
    return 0.90 if old else None


def check_figures(log: LogFacts) -> None:
    """Raise UserError where a log states a setting that no flag would take."""
    for name, largest in LARGEST.items():
        reading = getattr(log, name)
        if reading is not None and not 1 <= reading.value <= largest:
            raise UserError(
                f"{log.path}:{reading.line_number}: {name} is {float(reading.value):g}; it must be from 1 "
                f"to {largest:,}: is the line whole?"
            )


def free_before_load(log: LogFacts) -> Stated | None:
    """Free memory before the weights were loaded, printed or from what is left and they took."""
    after, weights = log.free_after_load, log.weights
    if log.free_before_load is not None or after is None or weights is None:
        return log.free_before_load
    return replace(after, value=after.value + weights.value)


def memory_of_log(deployment: Deployment, accounting: Accounting, log: LogFacts) -> Deployment:
    """`deployment`, with the memory that `log` states.

    Where vLLM states the KV memory but not all that was taken off, what it leaves open is one term,
    so that the terms lead to the stated figure. Where another engine's memory fraction is not
    stated, or its GPU is not named, the stated pool is taken as it is.
    """
    filled = replace(deployment, **_parts(deployment, log))
    if filled.num_gpu_blocks_override is not None:
        return filled
    pool = stated_pool(log)
    if pool is not None and (not filled.gpu.source or _is_guessed(filled, log)):
        source = ("log", pool.detail)
        return replace(filled, kv_cache_memory_bytes=pool.num_bytes, kv_cache_memory_source=source)
    unstated = [
        name for name in ("weights", "activations", "other") if getattr(filled, name) is None
    ]
    if log.available_kv is None or not unstated or log.engine != "vllm":
        return filled
    return _with_remainder(filled, accounting, log.available_kv, unstated)


def _is_guessed(filled: Deployment, log: LogFacts) -> bool:
    """Whether the terms of an engine other than vLLM would lead to a pool by defaults alone."""
    needed = (filled.weights, filled.other, filled.memory_utilization)
    return log.engine != "vllm" and any(part is None for part in needed)


def stated_pool(log: LogFacts) -> Given | None:
    """The bytes of the pool itself."""
    if log.available_kv is not None:
        return _stated(log.available_kv)
    if log.kv_size is not None:
        return _stated(log.kv_size)
    if log.k_size is not None and log.v_size is not None:
        num_bytes = log.k_size.num_bytes + log.v_size.num_bytes
        return Given(num_bytes, "log", _where(log.k_size, "K and V"))
    return None


def _is_overridden(log: LogFacts) -> bool:
    """Whether the pool has the blocks of the override that the log states.

    vLLM also states one of its own while it estimates CUDA graphs, with a trial pool.
    """
    override, blocks, tokens = log.num_gpu_blocks_override, log.num_gpu_blocks, log.num_tokens
    if override is None or log.available_kv is None or (blocks is None and tokens is None):
        return override is not None
    if blocks is not None:
        return blocks.value == override.value
    block_size = VLLM_BLOCK_SIZE if log.block_size is None else log.block_size.whole
    return tokens is not None and tokens.value == override.value * block_size


def _is_of_engine(inputs: SizeInputs, log: LogFacts) -> bool:
    named = inputs.accounting
    return named is None or named.partition("-")[0] == log.engine


def _dtype(said: str) -> str:
    """The names of KV types that engines print, as those that are sized here."""
    name = said.lower().removeprefix("torch.")
    if name.startswith(("fp8", "float8")):
        return "fp8"
    return name if name in ("bfloat16", "float16") else "auto"


def _parts(deployment: Deployment, log: LogFacts) -> dict[str, Given]:
    """What the log states of weights, activations, CUDA graphs and the rest."""
    parts: dict[str, Given] = {}
    weights, before, after = log.weights, free_before_load(log), log.free_after_load
    if weights is not None:
        parts["weights"] = _stated(weights)
    elif before is not None and after is not None:
        parts["weights"] = _less(before, after.num_bytes, after)
    elif log.torch_peak is not None:
        parts["weights"] = _stated(log.torch_peak, "with the peak of the activations")
        parts["activations"] = Given(0, "log", "within the weights' figure")
    elif log.consumed is not None:
        parts["weights"] = _stated(log.consumed, "with what is outside of torch")
        parts["other"] = Given(0, "log", "within the weights' figure")
    if log.activation_peak is not None:
        parts["activations"] = _stated(log.activation_peak)
    elif log.torch_peak is not None and weights is not None:
        parts["activations"] = _less(log.torch_peak, weights.num_bytes, weights)
    if log.non_torch is not None:
        parts["other"] = _stated(log.non_torch)
    elif log.consumed is not None and weights is not None:
        parts["other"] = _less(log.consumed, weights.num_bytes, weights)
    elif before is not None:
        outside = sum_bytes(gpu_memory_terms(deployment)) - before.num_bytes
        parts["other"] = Given(max(0, outside), "log", _where(before, "total less that"))
    if log.engine == "vllm":
        parts["cuda_graphs"] = _graphs(log)
    elif log.engine == "trtllm" and log.non_torch is not None:
        parts["cuda_graphs"] = Given(
            0, "log", _where(log.non_torch, "within what is outside torch")
        )
    elif log.engine == "trtllm" and log.total_memory is not None and after is not None:
        in_use = log.total_memory.num_bytes - after.num_bytes
        parts["weights"] = Given(in_use, "log", _where(after, "all that is in use after loading"))
        nothing = Given(0, "log", "within the weights' figure")
        parts |= dict.fromkeys(("activations", "cuda_graphs", "other"), nothing)
    return parts


def _graphs(log: LogFacts) -> Given:
    """What vLLM takes off for CUDA graphs before the pool is cut; older versions capture later."""
    estimate = log.cuda_graph_estimate
    if estimate is None:
        return Given(0, "log", "none set aside before the pool was cut")
    if log.consumed is not None:
        # One figure for weights and the rest: its peak holds the estimate.
        return Given(0, "log", "within the activations' figure")
    if _is_kept_out(estimate, log) or version_of(log) < FIRST_TO_SET_GRAPHS_ASIDE:
        return Given(0, "log", f"line {estimate.line_number} only states an estimate")
    return _stated(estimate)


def _is_kept_out(estimate: Stated, log: LogFacts) -> bool:
    """Whether the KV memory that the log states has room for the graphs yet."""
    terms = (log.weights, log.activation_peak, log.non_torch)
    budget = log.budget
    if budget is None or log.available_kv is None or not all(terms):
        return False
    left = budget.num_bytes - sum(term.num_bytes for term in terms if term is not None)
    return abs(left - log.available_kv.num_bytes) < estimate.num_bytes / 2


def version_of(log: LogFacts) -> tuple[int, int]:
    """(0, 19) of `0.19.1rc2.dev3`; what the log does not state is taken for the newest."""
    said = "" if log.version is None else log.version.value
    numbers = re.match(r"v?(\d+)\.(\d+)", said)
    return (int(numbers[1]), int(numbers[2])) if numbers else NEWEST


def _with_remainder(
    filled: Deployment, accounting: Accounting, available: Stated, unstated: list[str]
) -> Deployment:
    nothing = Given(0, "log", "within the term that the log leaves open")
    open_term = min(unstated, key=("activations", "other", "weights").index)
    without = replace(filled, **dict.fromkeys([*unstated, "cuda_graphs"], nothing))
    left = sum_bytes(accounting.budget(without, stage=0)) - available.num_bytes
    if left < LEAST_LEFT_BYTES:
        raise UserError(
            f"line {available.line_number} of the log leaves {left / 2**30:,.2f} GiB for all but weights "
            f"and KV: it is not of {filled.model.name} on {filled.gpu.name}; give the log's own --model "
            "and --gpu"
        )
    detail = f"all that line {available.line_number} leaves open"
    return replace(without, **{open_term: Given(left, "log", detail)})


def _stated(stated: Stated, remark: str = "") -> Given:
    return Given(stated.num_bytes, "log", _where(stated, remark))


def _less(stated: Stated, num_bytes: int, other: Stated) -> Given:
    detail = _where(stated, f"less line {other.line_number}")
    return Given(max(0, stated.num_bytes - num_bytes), "log", detail)


def _where(stated: Stated, remark: str) -> str:
    return f"line {stated.line_number}{f', {remark}' if remark else ''}"
