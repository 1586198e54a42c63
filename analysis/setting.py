"""From flags to a trace and a configuration."""

import dataclasses
from pathlib import Path
from typing import Any

from kvtwin.sim import RunConfig, read_settings
from kvtwin.traces import Trace, UserError, scan_trace, synthesize

from .limit_notes import limit_notes
from .options import Inputs
from .trace_flags import read_trace

# What `kvtwin compare` shows without being told anything: the setting of Kwon et al., "Efficient
# Memory Management for Large Language Model Serving with PagedAttention" (SOSP 2023), section 6:
# OPT-13B on an A100 of 40 GB with 12 GiB for the KV cache (table 1), 983 blocks of 16 slots.
REFERENCE = {
    "model": "opt-13b",
    "gpu": "a100-40gb",
    "kv_cache_memory_bytes": 12 * 2**30,
    "max_model_len": 2048,
    "watermark": 0.01,
    # Little's law on figure 13a: 30.42 requests / 2 requests/s / 338 output tokens. So every step weighs the same.
    "cost": "constant:45000000",
}
# Where a configuration is of a model alone: the GPU matters to the size of a simulated pool, and there is none.
ANY_GPU = "h100-80gb"
# Flags that make no sense for generated requests.
_OF_A_TRACE = (
    "format",
    "columns",
    "tokenizer",
    "trace_block_size",
    "skip",
    "window",
    "sample",
    "spread",
)
# Flags of the verbs themselves: what to run and where to write, not with which settings.
_OF_VERBS = {"policies", "out", "force", "json", "snapshots", "decisions", "device"}
REFERENCE_WORKLOAD = "sharegpt-like"
REFERENCE_NUM_REQUESTS = 2000


def load_config(inputs: Inputs, policy: str | None) -> tuple[RunConfig, list[str]]:
    """The configuration that `inputs` ask for; the reference setting where they name no machine.

    With it come sentences on defaults that an engine on that machine would not take. `policy` None leaves it to the
    configuration file or the default.

    Raises:
        UserError: the trace is no file, a value is out of range, or a trace comes without model
            and GPU.
    """
    names = {field.name for field in dataclasses.fields(RunConfig)}
    flags: dict[str, Any] = {
        name: value for name, value in vars(inputs).items() if name in names and value is not None
    }
    if inputs.trace is not None:
        _check_is_trace(inputs, inputs.trace)
    unnamed = inputs.config is None and inputs.model is None and inputs.gpu is None
    if unnamed and inputs.trace is not None:
        raise UserError(
            f"trace {inputs.trace} needs --model and --gpu, because the pool is sized from them; "
            "give both, e.g. --model opt-13b --gpu a100-40gb"
        )
    if unnamed:
        flags = REFERENCE | flags
        # A pool given in another way takes the place of the reference one.
        if {"num_gpu_blocks_override", "gpu_memory_utilization"} & flags.keys():
            flags["kv_cache_memory_bytes"] = inputs.kv_cache_memory_bytes
    others = (vars(inputs).keys() - names) | _OF_VERBS
    settings = read_settings(inputs.config, others, policy=policy, **flags)
    config = RunConfig.from_settings(settings)
    return config, [] if unnamed else limit_notes(config, settings)


def load_trace(inputs: Inputs, seed: int) -> Trace:
    """The requests that `inputs` ask for, read or generated with `seed`.

    Raises:
        UserError: flags that exclude each other, a bad value, or a bad trace.
    """
    if inputs.trace is None:
        for name in _OF_A_TRACE:
            if getattr(inputs, name):
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} is given without a trace to read; leave it out")
        trace = _generated(inputs, seed)
        if inputs.time_scale is not None:
            trace = trace.scale_time(inputs.time_scale)
        if inputs.rate_scale is not None:
            trace = trace.scale_rate(inputs.rate_scale)
    else:
        for name in ("workload", "burstiness"):
            if getattr(inputs, name) is not None:
                raise UserError(
                    f"--{name} is for generated requests, but trace {inputs.trace} is given; "
                    "leave one out"
                )
        trace = read_trace(inputs.trace, inputs, inputs.num_requests, seed)
        if inputs.num_requests is not None and inputs.num_requests > trace.num_requests:
            raise UserError(
                f"--num-requests is {inputs.num_requests:,}, but trace {inputs.trace} has "
                f"{trace.num_requests:,} requests; give at most that many or leave it out"
            )
    return trace


def _check_is_trace(inputs: Inputs, path: Path) -> None:
    """Raises UserError if a path is neither a file nor a folder of a known kind. Reads its beginning only."""
    try:
        is_file = path.is_file()
    except OSError:
        is_file = False
    if not is_file:
        with scan_trace(path, inputs.format, inputs.options(seed=0)):
            pass


def _generated(inputs: Inputs, seed: int) -> Trace:
    if inputs.burstiness is not None and inputs.rate is None:
        raise UserError(f"--burstiness {inputs.burstiness} needs --rate; give one or leave it out")
    return synthesize(
        inputs.workload or REFERENCE_WORKLOAD,
        REFERENCE_NUM_REQUESTS if inputs.num_requests is None else inputs.num_requests,
        seed,
        rate=inputs.rate,
        burstiness=1.0 if inputs.burstiness is None else inputs.burstiness,
    )
