"""The flags of `kvtwin size`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..engine_flags import PANEL, engine_flag, engine_switch

_MEMORY = "Memory that is known (per GPU; else estimated)"


def _flag(help_text: str, metavar: str, panel: str, **limits: Any) -> Any:
    return typer.Option(
        help=help_text, metavar=metavar, rich_help_panel=panel, show_default=False, **limits
    )


def _term(help_text: str, metavar: str) -> Any:
    return _flag(help_text, metavar, _MEMORY)


def _question(help_text: str, metavar: str, **limits: Any) -> Any:
    return _flag(help_text, metavar, "Questions", **limits)


@dataclass(frozen=True)
class SizeInputs:
    """What to size, as it was asked for; None where nothing was said."""

    model: Annotated[
        str | None,
        engine_flag(
            "model",
            "Model of the catalogue, or a Hugging Face config.json, or the directory that holds "
            "one; a wrong name lists all.",
            "NAME|PATH",
        ),
    ] = None
    gpu: Annotated[
        str | None,
        engine_flag("gpu", "GPU, e.g. a100-40gb, l4, h100; a wrong name lists all.", "NAME"),
    ] = None
    accounting: Annotated[
        str | None,
        _flag(
            "Whose arithmetic: vllm, vllm-no-hybrid, sglang, trtllm or exact (default: the log's "
            "engine, else vllm).",
            "NAME",
            PANEL,
        ),
    ] = None
    engine_log: Annotated[
        Path | None,
        _flag(
            "Start-up log of vLLM, SGLang or TensorRT-LLM: fills in what it states and checks it; flags go first.",
            "FILE",
            PANEL,
        ),
    ] = None
    tensor_parallel_size: Annotated[
        int | None, engine_flag("tensor_parallel_size", "GPUs that share each layer (default 1).")
    ] = None
    pipeline_parallel_size: Annotated[
        int | None,
        engine_flag("pipeline_parallel_size", "Stages that share out the layers (default 1)."),
    ] = None
    data_parallel_size: Annotated[
        int | None, engine_flag("data_parallel_size", "Replicas of all this (default 1).")
    ] = None
    gpu_memory_utilization: Annotated[
        float | None,
        engine_flag(
            "gpu_memory_utilization",
            "The engine's memory fraction: of all memory (vllm, exact), static part (sglang), of "
            "what is free after loading (trtllm); default: the engine's own.",
            "X",
            "--mem-fraction-static",
            "--kv_cache_free_gpu_memory_fraction",
        ),
    ] = None
    block_size: Annotated[
        int | None,
        engine_flag("block_size", "Tokens per block or page (default: the engine's)."),
    ] = None
    max_model_len: Annotated[
        int | None,
        engine_flag(
            "max_model_len",
            "Longest prompt plus output, also as 32k (32,000) or 32K (32,768); auto: the longest that fits "
            "(default: the model's).",
            "N|auto",
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        engine_flag("max_num_seqs", "Most requests in a step (default: vLLM's for the GPU)."),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        engine_flag(
            "max_num_batched_tokens",
            "Most tokens in a step, also as 8k (default: vLLM's for the GPU).",
        ),
    ] = None
    kv_cache_dtype: Annotated[
        str | None,
        engine_flag(
            "kv_cache_dtype",
            "auto, bfloat16, float16, or fp8 in either format (default: the files', else 16 bits).",
            "DTYPE",
        ),
    ] = None
    quantization: Annotated[
        str | None,
        engine_flag(
            "quantization",
            "Weights as this would store them: fp8, fp8-block, int8, awq, gptq, w4a16, mxfp4, nvfp4 or "
            "bitsandbytes (default: as shipped).",
            "NAME",
        ),
    ] = None
    enforce_eager: Annotated[
        bool | None, engine_switch("enforce_eager", "No CUDA graphs (default no).")
    ] = None
    gpu_memory_gib: Annotated[
        float | None, _term("Memory of the GPU as the driver reports it.", "GIB")
    ] = None
    weights_gib: Annotated[float | None, _term("Weights, as an engine's log says.", "GIB")] = None
    activation_gib: Annotated[
        float | None, _term("Peak of the activations beside the weights.", "GIB")
    ] = None
    cuda_graph_gib: Annotated[float | None, _term("CUDA graphs.", "GIB")] = None
    other_gib: Annotated[
        float | None, _term("CUDA context, communication, whatever is not a tensor.", "GIB")
    ] = None
    kv_cache_memory_bytes: Annotated[
        int | None,
        engine_flag(
            "kv_cache_memory_bytes",
            "Bytes of the KV pool itself, also as 10G or 10g.",
            "BYTES",
            panel=_MEMORY,
        ),
    ] = None
    num_gpu_blocks_override: Annotated[
        int | None,
        engine_flag("num_gpu_blocks_override", "Blocks of the KV pool itself.", panel=_MEMORY),
    ] = None
    lengths: Annotated[
        str | None,
        _question(
            "Concurrency at a length mix: a trace file, mean:TOKENS (resident tokens of a "
            "request) or mean:PROMPT,OUTPUT.",
            "TRACE|mean:...",
        ),
    ] = None
    request: Annotated[
        str | None,
        _question("Can a request of so many prompt tokens be served?", "PROMPT,MAX_TOKENS"),
    ] = None
    shared_prefix_tokens: Annotated[
        int | None,
        _question("What can requests share of a common prefix?", "N", min=0, max=10**9),
    ] = None
    session_tokens: Annotated[
        int | None,
        _question("Reload a session of so many tokens or recompute it?", "N", min=1, max=10**9),
    ] = None
    link_gb_per_s: Annotated[
        float | None, _question("Host link for that, GB/s (default: the GPU's PCIe).", "X")
    ] = None
    prefill_tokens_per_s: Annotated[
        float | None, _question("Prefill rate for that (default: a roofline).", "X")
    ] = None
