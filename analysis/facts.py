"""What was run, in words: the same for the terminal and for the page."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kvtwin.sim import (
    RunConfig,
    closed_loop_waits,
    find_policy,
    load_cost,
    loop_counts,
    size_pool,
)
from kvtwin.sim.policies.policy import POLICY_FIELDS
from kvtwin.traces import Trace, waits

from .definitions import NS_PER_S
from .unread import options_of, unread_notes

Facts = Mapping[str, Any]

LIMITS = ("max_num_seqs", "max_num_batched_tokens")
POLICY_OPTIONS = ("admission", "watermark", "growth_tokens", "fit", "compaction")
# Of vllm-v0 and vllm-v1: named where they are not left as they are.
VLLM_OPTIONS = (
    "num_samples",
    "sample_lengths",
    "beam_width",
    *(name for name in POLICY_FIELDS if name not in POLICY_OPTIONS),
    "disable_hybrid_kv_cache_manager",
)
ONE_SEQUENCE = (
    "several samples or beams of a request are served by policies that share blocks between them (vllm-v0, with or "
    "without prefix caching); every other policy gives it one sequence"
)
# Largest first: a duration is shown in the largest unit of which it has at least one.
TIME_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))


def gather_facts(
    config: RunConfig, trace: Trace, policies: Sequence[str] = (), notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Configuration, pool, notes and trace as JSON types; no times, hosts or paths.

    `notes`: further ones. The pool is that of `config.policy`, or of one of `policies` whose blocks are of all layers,
    if any is: all pools have the same bytes.

    Raises:
        UserError: the pool has no room, the coefficients file is bad, or a closed loop has no sessions.
    """
    of_all_layers = [name for name in policies if not find_policy(name).groups_layers]
    policy = (*of_all_layers, *policies, config.policy)[0]
    pool = size_pool(dataclasses.replace(config, policy=policy))
    loop = loop_counts(closed_loop_waits(trace)) if config.closed_loop else None
    return {
        "config": config.to_dict(),
        "pool": dataclasses.asdict(pool),
        "notes": [
            *pool.notes,
            *load_cost(config).notes,
            *trace.notes,
            *_group_notes(config, trace),
            *_content_notes(trace, policies or [config.policy]),
            *_priority_notes(config, trace),
            *unread_notes(config, policies or [config.policy]),
            *_session_notes(trace, loop),
            *notes,
        ],
        "trace": {
            "name": trace.name,
            "format": trace.format,
            "num_requests": trace.num_requests,
            "span_s": int(trace.chunks[-1].arrival_ns[-1]) / NS_PER_S,
            "saturated": trace.saturated and loop is None,
            "closed_loop": loop,
            "num_clipped": trace.num_clipped,
            "skipped": trace.skipped,
        },
    }


def _group_notes(config: RunConfig, trace: Trace) -> list[str]:
    asked = max(config.num_samples or 1, config.beam_width)
    if config.num_samples is None and trace.chunks[0].num_samples is not None:
        asked = max(
            asked,
            *(
                int(chunk.num_samples.max())
                for chunk in trace.chunks
                if chunk.num_samples is not None
            ),
        )
    return [ONE_SEQUENCE] if asked > 1 else []


def _content_notes(trace: Trace, policies: Sequence[str]) -> list[str]:
    reusing = [name for name in policies if find_policy(name).reuses_prefixes]
    if not reusing or any(chunk.content is not None for chunk in trace.chunks):
        return []
    return [
        f"the trace does not say what its prompts are made of, so {', '.join(reusing)} can find nothing cached but "
        "what a preempted request left"
    ]


def _priority_notes(config: RunConfig, trace: Trace) -> list[str]:
    if config.scheduling_policy != "priority" or any(c.priority is not None for c in trace.chunks):
        return []
    return ["the trace gives no priorities: all requests are equally urgent"]


def header_lines(facts: Facts) -> list[str]:
    """Four lines that say what was run, for a terminal."""
    config, pool = facts["config"], facts["pool"]
    return [
        f"{_model(config)} on {_gpus(config)}: max_model_len {pool['max_model_len']:,}, "
        f"{_listed(config, LIMITS)}",
        f"Pool: {_pool(facts)}; KV {_kv_dtype(config)}",
        f"Trace: {_trace(facts)}, {_arrivals(facts)}; step times: {_step_times(config)}",
        f"Policy options: block_size {pool['block_size']}, {_policy_options(config)}",
    ]


def labelled_facts(facts: Facts) -> list[tuple[str, str]]:
    """(label, value) pairs that say what was run, for a page."""
    config, pool = facts["config"], facts["pool"]
    return [
        ("Model", _model(config)),
        ("GPU", _gpus(config)),
        ("KV pool", _pool(facts)),
        ("KV per token", f"{pool['kv_bytes_per_token']:,} B{_per_gpu(config)}"),
        ("KV type", _kv_dtype(config)),
        ("Longest request", f"{pool['max_model_len']:,} tokens"),
        ("Trace", _trace(facts)),
        ("Arrivals", _arrivals(facts)),
        ("Step times", _step_times(config)),
        ("Limits", _listed(config, LIMITS)),
        ("Policy options", _policy_options(config)),
    ]


def _model(config: Facts) -> str:
    stored = config.get("quantization")  # a result of an earlier version lacks it
    return str(config["model"]) + (f" ({stored} weights)" if stored else "")


def _gpus(config: Facts) -> str:
    num = config["tensor_parallel_size"]
    return str(config["gpu"]) if num == 1 else f"{num} x {config['gpu']} (tensor parallel)"


def _per_gpu(config: Facts) -> str:
    return " per GPU" if config["tensor_parallel_size"] > 1 else ""


def _pool(facts: Facts) -> str:
    config, pool = facts["config"], facts["pool"]
    num_blocks, num_groups = f"{pool['num_blocks']:,} blocks", len(pool["groups"]["windows"])
    size = (
        f"{pool['num_slots']:,} token slots = {num_blocks} x {pool['block_size']}"
        if num_groups == 1
        else f"{num_blocks} of {pool['block_size']} tokens of one of {num_groups} groups of layers"
    )
    num_bytes = f"{pool['pool_bytes'] / 2**30:.2f} GiB{_per_gpu(config)}"
    return f"{size} = {num_bytes}, from {_pool_source(config)}"


def _pool_source(config: Facts) -> str:
    for name in ("num_gpu_blocks_override", "kv_cache_memory_bytes"):
        if config[name] is not None:
            return name
    eager = ", enforce_eager" if config.get("enforce_eager") else ""
    return f"gpu_memory_utilization {config['gpu_memory_utilization']:g}{eager}"


def _kv_dtype(config: Facts) -> str:
    name = str(config["kv_cache_dtype"])
    return "auto (16 bits)" if name == "auto" else name


def _trace(facts: Facts) -> str:
    trace = facts["trace"]
    return f"{trace['name']} ({trace['format']}), {trace['num_requests']:,} requests"


def _session_notes(trace: Trace, loop: Mapping[str, int] | None) -> list[str]:
    if loop is None:
        if not trace.saturated or not (num := loop_counts(waits(trace))["num_waiting_calls"]):
            return []
        return [
            f"the {num:,} calls that wait for others of their session arrive at once with these; with --closed-loop "
            "they follow them"
        ]
    if not loop["num_unknown_think_times"]:
        return []
    which = (
        f"the think time of {loop['num_unknown_think_times']:,} of {loop['num_waiting_calls']:,} calls that wait for "
        "others is not known: each comes "
    )
    if trace.saturated:
        return [which + "at once when the last of these has ended"]
    return [
        which
        + "as long after the call before it came as was recorded, or, if that is later, when that call has ended"
    ]


def _arrivals(facts: Facts) -> str:
    trace = facts["trace"]
    if trace["closed_loop"] is not None:
        num = trace["closed_loop"]["num_waiting_calls"]
        first = ", the rest at once" if not trace["span_s"] else ""
        return f"closed loop ({num:,} come after others have ended{first})"
    if trace["saturated"]:
        return "all at once (saturated)"
    rate = (trace["num_requests"] - 1) / trace["span_s"]
    return f"{rate:,.2f} requests/s for {trace['span_s']:,.0f} s"


def _step_times(config: Facts) -> str:
    cost = config["cost"]
    if not isinstance(cost, str):
        return str(cost["file"])
    name, _, constant_ns = cost.partition(":")
    return f"{name} {_duration(int(constant_ns))}" if constant_ns else name


def _duration(ns: int) -> str:
    size, unit = next((size, unit) for size, unit in TIME_UNITS if ns >= size)
    return f"{ns / size:g} {unit}"


def _changed(config: Facts) -> list[str]:
    """Options of vllm-v0 and vllm-v1 that are not at their defaults; a result of an earlier version may lack them."""
    defaults = {field.name: field.default for field in dataclasses.fields(RunConfig)}
    return [name for name in VLLM_OPTIONS if config.get(name, defaults[name]) != defaults[name]]


def _policy_options(config: Facts) -> str:
    """With the watermark that holds, where the facts are of one policy that heeds one."""
    policy = config.get("policy")  # a comparison has none
    if policy is not None and config["watermark"] is None and "watermark" in options_of(policy):
        config = {**config, "watermark": find_policy(policy).default_watermark}
    return _listed(config, (*POLICY_OPTIONS, *_changed(config), "max_tokens", "seed"))


def _listed(config: Facts, names: Sequence[str]) -> str:
    return ", ".join(f"{name} {_shown(config[name])}" for name in names if config[name] is not None)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
