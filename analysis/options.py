"""The flags that say what to simulate, shared by the verbs that do so."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from kvtwin.traces import WORKLOADS

from .engine_flags import PANEL, engine_flag, engine_switch
from .trace_flags import TraceFlags


def _flag(help_text: str, metavar: str, panel: str) -> Any:
    return typer.Option(help=help_text, metavar=metavar, rich_help_panel=panel, show_default=False)


def _workload(help_text: str, metavar: str) -> Any:
    return _flag(help_text, metavar, "Requests")


def _manager(help_text: str, metavar: str) -> Any:
    return _flag(help_text, metavar, "Memory manager and cost")


def _switch(names: str, help_text: str) -> Any:
    panel = "Memory manager and cost"
    return typer.Option(names, help=help_text, rich_help_panel=panel, show_default=False)


@dataclass(frozen=True)
class Inputs(TraceFlags):
    """What to simulate, as it was asked for; None where nothing was said.

    Fields that `kvtwin.sim.RunConfig` has too carry its names, and its defaults where None.
    """

    trace: Annotated[
        Path | None,
        typer.Argument(help="Request trace; without one, requests are generated.", metavar="TRACE"),
    ] = None
    workload: Annotated[
        str | None,
        _workload(f"Workload to generate: {', '.join(WORKLOADS)} (default sharegpt-like).", "NAME"),
    ] = None
    num_requests: Annotated[
        int | None,
        _workload("Requests to generate (default 2000), or to take from the start of TRACE.", "N"),
    ] = None
    rate: Annotated[
        float | None,
        _workload(
            "Generated requests per second, or inf: all at once (default). Of TRACE inf only: all requests at once, "
            "in its order (default: as recorded).",
            "R",
        ),
    ] = None
    burstiness: Annotated[
        float | None, _workload("Gamma shape of generated arrivals (default 1.0, Poisson).", "B")
    ] = None
    max_tokens: Annotated[int | None, _workload("Cap on the output of every request.", "N")] = None
    num_samples: Annotated[
        int | None,
        _workload("Outputs of every prompt, by vllm-v0 (default: what TRACE says, else 1).", "N"),
    ] = None
    sample_lengths: Annotated[
        str | None,
        _workload("Of the further samples: independent or equal (default independent).", "RULE"),
    ] = None
    beam_width: Annotated[
        int | None, _workload("Beams of a search for every prompt, by vllm-v0 (default 1).", "N")
    ] = None
    closed_loop: Annotated[
        bool | None,
        typer.Option(
            "--closed-loop/--no-closed-loop",
            help="Calls of a session come their think time after those they wait for have ended in the run, "
            "not as recorded (default no).",
            rich_help_panel="Requests",
            show_default=False,
        ),
    ] = None
    seed: Annotated[int | None, _workload("Seed of everything random (default 0).", "S")] = None
    config: Annotated[
        Path | None,
        _flag(
            "TOML file with settings as keys (model = ..., block-size = ...): all that TRACE and the verb do not say; "
            "flags on the command line override it.",
            "FILE",
            PANEL,
        ),
    ] = None
    model: Annotated[
        str | None,
        engine_flag("model", "Model, e.g. opt-13b, llama-3.1-8b; a wrong name lists all.", "NAME"),
    ] = None
    gpu: Annotated[
        str | None,
        engine_flag("gpu", "GPU, e.g. a100-40gb, l4, h100; a wrong name lists all.", "NAME"),
    ] = None
    tensor_parallel_size: Annotated[
        int | None, engine_flag("tensor_parallel_size", "GPUs (default 1).")
    ] = None
    num_gpu_blocks_override: Annotated[
        int | None, engine_flag("num_gpu_blocks_override", "Blocks in the pool.")
    ] = None
    kv_cache_memory_bytes: Annotated[
        int | None,
        engine_flag(
            "kv_cache_memory_bytes", "Bytes of the pool, per GPU, also as 10G or 10g.", "BYTES"
        ),
    ] = None
    gpu_memory_utilization: Annotated[
        float | None,
        engine_flag(
            "gpu_memory_utilization", "Share of the GPU's memory to use (default 0.92).", "X"
        ),
    ] = None
    block_size: Annotated[
        int | None, engine_flag("block_size", "Token slots per block (default 16).")
    ] = None
    max_model_len: Annotated[
        int | None,
        engine_flag(
            "max_model_len",
            "Longest prompt plus output, also as 32k (32,000) or 32K (32,768); default: the model's.",
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None, engine_flag("max_num_seqs", "Most requests in a step (default 256).")
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        engine_flag("max_num_batched_tokens", "Most tokens in a step, also as 8k (default 8192)."),
    ] = None
    kv_cache_dtype: Annotated[
        str | None,
        engine_flag(
            "kv_cache_dtype",
            "auto, bfloat16, float16, or fp8 in either format (default auto).",
            "DTYPE",
        ),
    ] = None
    quantization: Annotated[
        str | None,
        engine_flag(
            "quantization", "Weights as this would store them (default: as shipped).", "NAME"
        ),
    ] = None
    enforce_eager: Annotated[
        bool | None,
        engine_switch("enforce_eager", "No memory for CUDA graphs (default no)."),
    ] = None
    admission: Annotated[
        str | None, _manager("Memory to admit with: full or step (default full).", "RULE")
    ] = None
    watermark: Annotated[
        float | None,
        _manager("Share of the pool that admissions leave free (default: the policy's).", "X"),
    ] = None
    growth_tokens: Annotated[
        int | None, _manager("Slots by which a contiguous run grows (default 16).", "N")
    ] = None
    fit: Annotated[
        str | None, _manager("Free run to take: first or best (default first).", "RULE")
    ] = None
    compaction: Annotated[
        bool | None,
        _switch(
            "--compaction/--no-compaction",
            "Move contiguous runs together when none is long enough (default no).",
        ),
    ] = None
    preemption_mode: Annotated[
        str | None,
        _manager("Of vllm-v0: recompute, swap or auto, by sequences (default auto).", "RULE"),
    ] = None
    swap_space: Annotated[
        float | None, _manager("Host memory for swapping in GiB, per GPU (default 4.0).", "GIB")
    ] = None
    swap_copy_ns: Annotated[
        int | None,
        _manager("Cost of each copy to or from the host beside its bytes (default 5000).", "NS"),
    ] = None
    scheduling_policy: Annotated[
        str | None, _manager("Of vllm-v1: fcfs, or priority as TRACE says (default fcfs).", "RULE")
    ] = None
    enable_chunked_prefill: Annotated[
        bool | None,
        _switch(
            "--enable-chunked-prefill/--no-enable-chunked-prefill", "Of vllm-v1 (default yes)."
        ),
    ] = None
    long_prefill_token_threshold: Annotated[
        int | None,
        _manager("Of vllm-v1: most tokens of a prompt in a step (default 0, no limit).", "N"),
    ] = None
    async_scheduling: Annotated[
        bool | None,
        _switch(
            "--async-scheduling/--no-async-scheduling",
            "Of vllm-v1: plan a step before the tokens of the last one are known (default no).",
        ),
    ] = None
    free_order: Annotated[
        str | None,
        _manager("Of vllm-v1: front, or back as before vLLM 0.32 (default front).", "RULE"),
    ] = None
    disable_hybrid_kv_cache_manager: Annotated[
        bool | None,
        _switch(
            "--disable-hybrid-kv-cache-manager/--no-disable-hybrid-kv-cache-manager",
            "Of vllm-v1: windows stored in full, as are other layers (default no).",
        ),
    ] = None
    cost: Annotated[
        str | None,
        _manager(
            "Step durations: roofline, constant:NS (NS nanoseconds per step), or a file of "
            "coefficients (default roofline).",
            "MODEL",
        ),
    ] = None
    paranoid: Annotated[
        bool, typer.Option("--paranoid", help="Recount every structure from scratch at each step.")
    ] = False


OutOption = Annotated[Path, typer.Option(help="Directory for the results.", metavar="DIR")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace earlier results in --out.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, nothing else.")]


# Of setting.REFERENCE, in words, because help does not load what a simulation needs.
REFERENCE_HELP = (
    "Without TRACE, --config, --model and --gpu, the setting of the PagedAttention paper is run: "
    "OPT-13B on an A100 of 40 GB with 12 GiB for the KV cache (983 blocks of 16 slots), "
    "max-model-len 2048, watermark 0.01, constant steps of 45 ms, and 2,000 sharegpt-like "
    "requests that all arrive at once. Flags change any of it."
)


def takes_inputs(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command(inputs, ...)` the flags of `Inputs` in front of its own, and their help."""
    return takes_inputs_and()(command)


def takes_inputs_and(*more: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give `command(inputs, first of more, ...)` the flags of `Inputs` and of `more`, and their help."""

    def give_inputs(command: Callable[..., None]) -> Callable[..., None]:
        with_flags = takes_flags_of(Inputs, *more)(command)
        with_flags.__doc__ = f"{inspect.getdoc(command)}\n\n{REFERENCE_HELP}"
        return with_flags

    return give_inputs


def takes_flags_of(*options: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give `command(first, second, ...)` flags for the fields of the dataclasses `options`, before its own.

    It gets one of each, in their order, in front of its own arguments.
    """
    shared = {
        option: [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=get_type_hints(option, include_extras=True)[field.name],
            )
            for field in fields(option)
        ]
        for option in options
    }

    def give_flags(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = list(signature.parameters.values())[len(options) :]

        @functools.wraps(command)
        def with_flags(**flags: Any) -> None:
            given = [
                option(**{parameter.name: flags.pop(parameter.name) for parameter in parameters})
                for option, parameters in shared.items()
            ]
            command(*given, **flags)

        # typer reads the flags from here.
        parameters = [parameter for listed in shared.values() for parameter in listed]
        parameters += [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_flags.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_flags

    return give_flags
