"""From the flags of `kvtwin size`, and an engine's log, to a deployment."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kvtwin.sim import find_gpu, find_model
from kvtwin.sim.catalog import GpuMemory
from kvtwin.sim.checkpoint import quantize, read_model
from kvtwin.sim.model import ModelSpec, kv_dtype
from kvtwin.sim.setting_values import AUTO_LENGTH, check_step, check_value, flag_of
from kvtwin.sim.sizing.accounting import Accounting
from kvtwin.sim.sizing.bisect import largest_that
from kvtwin.sim.sizing.changed import changed
from kvtwin.sim.sizing.deployment import Deployment, Given
from kvtwin.sim.sizing.engine_log import LogFacts
from kvtwin.sim.sizing.registry import find_accounting
from kvtwin.sim.sizing.size import size
from kvtwin.sim.sizing.terms import Source
from kvtwin.traces import UserError

from .from_log import (
    QUANTIZATIONS,
    check_figures,
    free_before_load,
    memory_of_log,
    stated_pool,
    with_log,
)
from .options import SizeInputs

LARGEST_GIB = 10**6
# Of the settings that runs have, too, those whose values mean the same to every engine.
CHECKED = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "block_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_dtype",
    "num_gpu_blocks_override",
    "kv_cache_memory_bytes",
)

# Of a deployment, what flags can change of the one that a log is of.
CHANGEABLE = (
    "model",
    "max_model_len",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "memory_utilization",
    "block_size",
    "kv_cache_dtype",
    "max_num_seqs",
    "max_num_batched_tokens",
    "enforce_eager",
    "num_gpu_blocks_override",
    "kv_cache_memory_bytes",
    "weights",
    "activations",
    "cuda_graphs",
    "other",
)


@dataclass(frozen=True)
class Setting:
    """What is to be sized, by whose arithmetic, and the deployment that the log is of, if there is one."""

    deployment: Deployment
    accounting: Accounting
    logged: Deployment | None
    notes: tuple[str, ...]


def load_setting(inputs: SizeInputs, log: LogFacts | None) -> Setting:
    """What is asked for. Flags go before what `log` states, and that before defaults.

    Where flags differ from the log, what it states of memory is scaled to what they ask for.

    Raises:
        UserError: a flag is missing, out of range, or contradicts another or the log.
    """
    _check_values(inputs)
    if log is None:
        accounting = find_accounting(inputs.accounting or "vllm")
        deployment, logged = _deployment(inputs, None), None
    else:
        check_figures(log)
        accounting = find_accounting(inputs.accounting or log.engine)
        of_log = with_log(inputs, log)
        stored = _as_stored(of_log, inputs, log)
        plain = _deployment(stored, log)
        _check_model(plain, inputs, log)
        logged = memory_of_log(plain, accounting, log)
        asked = _deployment(_flags_over(inputs, stored), log)
        settings = {
            name: getattr(asked, name)
            for name in CHANGEABLE
            if getattr(asked, name) != getattr(plain, name)
        }
        if "memory_utilization" in settings:
            settings["memory_utilization_source"] = "given"
        deployment = changed(logged, accounting, **settings) if settings else logged
    if inputs.max_num_seqs is not None and accounting.name.startswith("vllm"):
        check_step(
            inputs.max_num_seqs,
            accounting.max_num_batched_tokens(deployment),
            accounting.default_max_num_batched_tokens(deployment),
        )
    if inputs.max_model_len == AUTO_LENGTH:
        deployment = _with_longest(deployment, accounting)
    return Setting(
        deployment, accounting, logged, tuple(_notes(inputs, deployment, accounting, log))
    )


def _check_values(inputs: SizeInputs) -> None:
    for name in CHECKED:
        value = getattr(inputs, name)
        if value is not None and (name, value) != ("max_model_len", AUTO_LENGTH):
            check_value(name, value)


def _flags_over(inputs: SizeInputs, of_log: SizeInputs) -> SizeInputs:
    said = {name: value for name, value in vars(inputs).items() if value is not None}
    return replace(of_log, **said)


def _as_stored(of_log: SizeInputs, inputs: SizeInputs, log: LogFacts) -> SizeInputs:
    """How the log's own weights are stored: as it names it, or as the flag does where that is nearer.

    --quantization may say how they are stored, or what to change them to.
    """
    plain = replace(of_log, quantization=None)
    if inputs.model is not None and _is_path(inputs.model):
        return plain  # the file itself says
    named = QUANTIZATIONS.get(log.quantization.value.lower()) if log.quantization else None
    possible = [plain]
    for name in filter(None, dict.fromkeys((named, inputs.quantization))):
        said = replace(plain, quantization=name)
        try:
            _model(said)
        except UserError:  # shipped quantised, or has no experts
            continue
        possible.append(said)
    if log.weights is None:
        return next((said for said in possible if said.quantization == named), plain)
    stated, ranks = log.weights.num_bytes, plain.tensor_parallel_size or 1
    return min(possible, key=lambda said: abs(_model(said).weight_bytes_per_rank(ranks) - stated))


def _check_model(plain: Deployment, inputs: SizeInputs, log: LogFacts) -> None:
    """Raise UserError where the log names a model of another shape than the flag."""
    if inputs.model is None or log.model is None or _is_path(inputs.model):
        return
    try:
        named = find_model(log.model.value)
    except UserError:  # a path, or a name that only its owner knows
        return
    if (named.layers, named.num_params) != (plain.model.layers, plain.model.num_params):
        raise UserError(
            f"--model is {plain.model.name}; line {log.model.line_number} of the log names "
            f"{log.model.value}: leave the flag out, or give the log of that model"
        )


def _notes(
    inputs: SizeInputs, deployment: Deployment, accounting: Accounting, log: LogFacts | None
) -> Iterator[str]:
    shipped = deployment.model.shipped_kv_cache_dtype
    if shipped and inputs.kv_cache_dtype in (None, "auto"):
        heeds = "does as" if _heeds_files(accounting.name) else "may not do what"
        yield f"the files ask for a KV cache in {shipped}, and the engine {heeds} they say"
    if log is None:
        return
    unsaid = log.memory_utilization is None and log.budget is None
    if unsaid and inputs.gpu_memory_utilization is None:
        yield "the log does not state the memory fraction: its engine's default is taken"
    if not deployment.gpu.source:
        yield "the log does not name the GPU: with --gpu the rest of its memory is shown, too"
    if log.total_memory is not None and inputs.gpu is not None:
        named, stated = find_gpu(inputs.gpu), log.total_memory
        if not 0.9 < stated.num_bytes / named.memory_bytes <= 1.01:
            yield (
                f"line {stated.line_number} of the log states {stated.num_bytes / 2**30:.2f} GiB in all, "
                f"{named.name} has {named.memory_bytes / 2**30:.2f}: the log's figure is used"
            )


def _heeds_files(accounting: str) -> bool:
    """Whether the engine stores KV as the model's files ask; SGLang does for some of them only."""
    return accounting.startswith("vllm") or accounting == "exact"


def _deployment(stated: SizeInputs, log: LogFacts | None) -> Deployment:
    """What `stated` asks for, without the memory that the log states."""
    model = _model(stated)
    gpu, gpu_memory_source = _gpu(stated, log)
    dtype = stated.kv_cache_dtype or "auto"
    if dtype == "auto" and _heeds_files(stated.accounting or "vllm"):
        dtype = model.shipped_kv_cache_dtype or dtype
    return Deployment(
        model=model,
        gpu=gpu,
        gpu_memory_source=gpu_memory_source,
        max_model_len=model.max_model_len
        if stated.max_model_len in (None, AUTO_LENGTH)
        else stated.max_model_len,
        tensor_parallel_size=stated.tensor_parallel_size or 1,
        pipeline_parallel_size=stated.pipeline_parallel_size or 1,
        data_parallel_size=stated.data_parallel_size or 1,
        memory_utilization=stated.gpu_memory_utilization,
        memory_utilization_source="given" if log is None else "log",
        block_size=stated.block_size,
        kv_cache_dtype=kv_dtype(dtype),
        max_num_seqs=stated.max_num_seqs,
        max_num_batched_tokens=stated.max_num_batched_tokens,
        enforce_eager=bool(stated.enforce_eager),
        num_gpu_blocks_override=stated.num_gpu_blocks_override,
        kv_cache_memory_bytes=stated.kv_cache_memory_bytes,
        weights=_given("weights_gib", stated),
        activations=_given("activation_gib", stated),
        cuda_graphs=_given("cuda_graph_gib", stated),
        other=_given("other_gib", stated),
    )


def _model(stated: SizeInputs) -> ModelSpec:
    if not stated.model:
        raise UserError("no --model given; give a name, e.g. llama-3.1-8b, or a config.json")
    is_path = _is_path(stated.model)
    model = read_model(Path(stated.model)) if is_path else find_model(stated.model)
    return model if stated.quantization is None else quantize(model, stated.quantization)


def _is_path(model: str) -> bool:
    return Path(model).suffix == ".json" or Path(model).is_dir()


def _gpu(stated: SizeInputs, log: LogFacts | None) -> tuple[GpuMemory, Source]:
    """The GPU, with the memory that is given or that the log states, else the catalogue's."""
    total = None if log is None else log.total_memory or free_before_load(log)
    source: Source = "given"
    if stated.gpu_memory_gib is not None:
        num_bytes, detail = _bytes_of("gpu_memory_gib", stated.gpu_memory_gib), "--gpu-memory-gib"
    elif log is not None and total is not None and (log.total_memory or stated.gpu is None):
        what = "" if log.total_memory else ", free before loading"
        num_bytes, source, detail = total.num_bytes, "log", f"line {total.line_number}{what}"
    elif stated.gpu is not None:
        return find_gpu(stated.gpu), "catalogue"
    elif log is not None and (pool := stated_pool(log)) is not None:
        # memory_of_log takes the pool from the log, so no other memory matters.
        return GpuMemory("a GPU that is not named", pool.num_bytes, ""), "log"
    else:
        raise UserError(
            "no --gpu given; give one, e.g. --gpu a100-80gb, or its memory with --gpu-memory-gib"
        )
    if stated.gpu is not None:
        named = find_gpu(stated.gpu)
        return replace(named, memory_bytes=num_bytes, source=detail), source
    return GpuMemory(f"a GPU of {num_bytes / 2**30:.2f} GiB", num_bytes, detail), source


def _given(name: str, inputs: SizeInputs) -> Given | None:
    value = getattr(inputs, name)
    if value is None:
        return None
    return Given(_bytes_of(name, value), "given", flag_of(name))


def _bytes_of(name: str, gib: float) -> int:
    if not math.isfinite(gib) or not 0 <= gib <= LARGEST_GIB:
        raise UserError(f"{flag_of(name)} is {gib:g}; it must be from 0 to {LARGEST_GIB:,} GiB")
    return round(gib * 2**30)


def _with_longest(deployment: Deployment, accounting: Accounting) -> Deployment:
    """The engine plans by max_model_len, so each length is judged by a sizing that has it."""
    longest = largest_that(
        lambda length: size(replace(deployment, max_model_len=length), accounting).works,
        deployment.max_model_len,
    )
    return replace(deployment, max_model_len=max(1, longest))
