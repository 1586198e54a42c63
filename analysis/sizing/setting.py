"""From the flags of `kvtwin size`, and an engine's log, to a deployment."""

import math
from dataclasses import replace
from pathlib import Path

from kvtwin.sim import find_gpu, find_model
from kvtwin.sim.catalog import GpuMemory
from kvtwin.sim.checkpoint import quantize, read_model
from kvtwin.sim.model import KV_DTYPE_BYTES, ModelSpec
from kvtwin.sim.names import did_you_mean
from kvtwin.sim.sizing.accounting import Accounting
from kvtwin.sim.sizing.bisect import largest_that
from kvtwin.sim.sizing.deployment import Deployment, Given
from kvtwin.sim.sizing.engine_log import LogFacts
from kvtwin.sim.sizing.registry import find_accounting
from kvtwin.sim.sizing.size import size
from kvtwin.sim.sizing.terms import Source
from kvtwin.traces import UserError

from .from_log import free_before_load, memory_of_log, with_log
from .options import SizeInputs

LARGEST_GIB = 10**6
AUTO_LENGTH = ("auto", "-1")  # as vLLM spells it


def load_setting(inputs: SizeInputs, log: LogFacts | None) -> tuple[Deployment, Accounting]:
    """The deployment that is asked for, and whose arithmetic counts.

    Flags go before what `log` states, and that before defaults.

    Raises:
        UserError: a flag is missing, out of range, or contradicts another.
    """
    stated = inputs if log is None else with_log(inputs, log)
    accounting = find_accounting(stated.accounting or "vllm")
    model = _model(stated)
    gpu, gpu_memory_source = _gpu(stated, log)
    deployment = Deployment(
        model=model,
        gpu=gpu,
        gpu_memory_source=gpu_memory_source,
        max_model_len=_length(stated.max_model_len, model),
        tensor_parallel_size=stated.tensor_parallel_size or 1,
        pipeline_parallel_size=stated.pipeline_parallel_size or 1,
        data_parallel_size=stated.data_parallel_size or 1,
        memory_utilization=stated.gpu_memory_utilization,
        memory_utilization_source="log" if inputs.gpu_memory_utilization is None else "given",
        block_size=stated.block_size,
        kv_cache_dtype=_dtype(stated.kv_cache_dtype or "auto"),
        max_num_seqs=stated.max_num_seqs,
        max_num_batched_tokens=stated.max_num_batched_tokens,
        enforce_eager=stated.enforce_eager,
        num_gpu_blocks_override=stated.num_gpu_blocks_override,
        kv_cache_memory_bytes=stated.kv_cache_memory_bytes,
        weights=_given("weights_gib", inputs),
        activations=_given("activation_gib", inputs),
        cuda_graphs=_given("cuda_graph_gib", inputs),
        other=_given("other_gib", inputs),
    )
    if log is not None:
        deployment = memory_of_log(deployment, accounting, log)
    if stated.max_model_len in AUTO_LENGTH:
        deployment = _with_longest(deployment, accounting)
    return deployment, accounting


def _model(stated: SizeInputs) -> ModelSpec:
    if stated.model is None:
        raise UserError("no --model given; give a name, e.g. llama-3.1-8b, or a config.json")
    path = Path(stated.model)
    is_path = path.suffix == ".json" or path.is_dir()
    model = read_model(path) if is_path else find_model(stated.model)
    return model if stated.quantization is None else quantize(model, stated.quantization)


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
    elif log is not None and log.available_kv is not None:
        # memory_of_log takes the pool from the log, so no other memory matters.
        return GpuMemory("a GPU that is not named", log.available_kv.num_bytes, ""), "log"
    else:
        raise UserError(
            "no --gpu given; give one, e.g. --gpu a100-80gb, or its memory with --gpu-memory-gib"
        )
    if stated.gpu is not None:
        named = find_gpu(stated.gpu)
        return replace(named, memory_bytes=num_bytes, source=detail), source
    return GpuMemory(f"a GPU of {num_bytes / 2**30:.2f} GiB", num_bytes, detail), source


def _length(said: str | None, model: ModelSpec) -> int:
    if said is None or said in AUTO_LENGTH:
        return model.max_model_len
    if not said.isascii() or not said.isdigit() or not 1 <= int(said) <= 10**12:
        raise UserError(
            f"--max-model-len is {said!r}; it must be a whole number of tokens from 1 on, or auto"
        )
    return int(said)


def _dtype(name: str) -> str:
    if name not in KV_DTYPE_BYTES:
        hint = did_you_mean(name, KV_DTYPE_BYTES)
        choices = ", ".join(KV_DTYPE_BYTES)
        raise UserError(f"--kv-cache-dtype is {name!r}{hint}; it must be one of {choices}")
    return name


def _given(name: str, inputs: SizeInputs) -> Given | None:
    value = getattr(inputs, name)
    if value is None:
        return None
    return Given(_bytes_of(name, value), "given", _flag(name))


def _bytes_of(name: str, gib: float) -> int:
    if not math.isfinite(gib) or not 0 <= gib <= LARGEST_GIB:
        raise UserError(f"{_flag(name)} is {gib:g}; it must be from 0 to {LARGEST_GIB:,} GiB")
    return round(gib * 2**30)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _with_longest(deployment: Deployment, accounting: Accounting) -> Deployment:
    """The engine plans by max_model_len, so each length is judged by a sizing that has it."""
    longest = largest_that(
        lambda length: size(replace(deployment, max_model_len=length), accounting).works,
        deployment.max_model_len,
    )
    return replace(deployment, max_model_len=max(1, longest))
