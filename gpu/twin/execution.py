"""A trace executed on a device: the engine that simulates it, driven by what steps really take."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from kvtwin.sim import Assembly, RunConfig, assemble, find_policy, layer_groups
from kvtwin.sim.assembly import under_policy
from kvtwin.traces import Trace, UserError

from ..audit.poison import WORD_BYTES
from ..check.backends import Backend
from .content import ContentShape
from .driver import drive
from .executor import Clock, DeviceExecutor, Observer
from .layers import pool_shape, windows_of

_MOST_LAYERS = 10_000  # each is dealt to a group: many more than any model has
# By kv_cache_dtype. auto is 16 bits, as in the simulation.
_DTYPES = {"auto": torch.float16, "float16": torch.float16, "bfloat16": torch.bfloat16}


def content_shape(
    config: RunConfig,
    num_layers: int | None = None,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
) -> ContentShape:
    """The shape of `config.model`, with what is not None in its place.

    Raises UserError where the kernels cannot hold its KV, slots cannot be audited, heads do not divide, or
    `config.policy` keeps groups of layers of which not each has one.
    """
    model = config.model_spec
    if config.tensor_parallel_size > 1:
        raise UserError(
            f"--tensor-parallel-size is {config.tensor_parallel_size}; an execution has one device"
        )
    if config.kv_cache_dtype not in _DTYPES:
        raise UserError(
            f"--kv-cache-dtype is {config.kv_cache_dtype}, which the kernels do not hold; "
            f"to execute, use {', '.join(_DTYPES)}"
        )
    if model.mla_latent_dim and None in (num_heads, head_dim):
        raise UserError(
            f"{model.name} keeps a latent instead of K and V, which the kernels do not hold; "
            "to execute, use another --model, or give --heads and --head-dim"
        )
    heads, groups = num_heads or model.num_heads, layer_groups(config)
    num_layers, num_groups = num_layers or model.num_layers, len(groups.windows)
    if (
        num_layers < num_groups
        and find_policy(config.policy).groups_layers
        and not config.disable_hybrid_kv_cache_manager
    ):
        raise UserError(
            f"--layers is {num_layers}; {config.policy} keeps the layers of {model.name} in {num_groups} groups, of "
            f"which each must have one: use --layers {num_groups} or more"
        )
    if num_layers > _MOST_LAYERS and not groups.has_one_table:
        raise UserError(
            f"--layers is {num_layers:,}; no more than {_MOST_LAYERS:,} with windows are executed: use fewer --layers"
        )
    shape = ContentShape(
        num_layers,
        heads,
        num_kv_heads or (heads if num_heads else model.num_kv_heads),
        head_dim or model.head_dim,
        _DTYPES[config.kv_cache_dtype],
        windows_of(groups, num_layers),
    )
    if shape.num_heads % shape.num_kv_heads:
        raise UserError(
            f"{shape.num_heads} heads cannot share {shape.num_kv_heads} KV heads; "
            "--heads must be a multiple of --kv-heads"
        )
    slot_bytes = shape.num_kv_heads * shape.head_dim * shape.dtype.itemsize
    if slot_bytes % WORD_BYTES:
        raise UserError(
            f"{shape.num_kv_heads} KV heads of {shape.head_dim} are {slot_bytes} bytes a token in each layer's K; "
            f"it must be a multiple of {WORD_BYTES}: use another --head-dim or --kv-heads"
        )
    return shape


def _check_memory(num_slots: int, shape: ContentShape, device: str) -> None:
    slot_bytes = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * shape.dtype.itemsize
    if device == "cuda":
        available = torch.cuda.mem_get_info()[0]
    else:
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if num_slots * slot_bytes > available:
        raise UserError(
            f"the pool has {num_slots:,} slots of {slot_bytes:,} bytes in {shape.num_layers} layers, "
            f"{num_slots * slot_bytes / 1e9:.1f} GB; {device} has {available / 1e9:.1f} GB: use fewer "
            "--layers or a smaller pool"
        )


@dataclass(frozen=True)
class Execution:
    """What an execution was made of, when its last event was, and its summary."""

    assembly: Assembly
    executor: DeviceExecutor
    end_ns: int
    summary: dict[str, Any]


def execute(
    trace: Trace,
    config: RunConfig,
    shape: ContentShape,
    backend: Backend,
    clock: Clock,
    *,
    paranoid: bool = False,
    observe: Callable[[Assembly, DeviceExecutor], Iterable[Observer]] = lambda *_: (),
) -> Execution:
    """Run `trace` under `config.policy` on real tensors until every request has ended.

    `observe` makes those who look at every step. Raises UserError for what the user can mend.
    """
    with under_policy(config.policy):
        assembly = assemble(trace, config, snapshots=True, decisions=True, paranoid=paranoid)
        if assembly.policy.keeps_kv:
            groups = assembly.pool.groups
            num_slots = assembly.pool.num_slots // groups.block_token_slots
            _check_memory(num_slots, pool_shape(shape, groups), backend.device)
        executor = DeviceExecutor(assembly, shape, backend, clock)
        executor.observers += observe(assembly, executor)
        end_ns = drive(assembly.engine, executor, clock)
        executor.finish()
        return Execution(assembly, executor, end_ns, assembly.finish(end_ns))
