"""How many KV blocks a GPU holds, and why."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvtwin.traces import UserError

from .block_groups import ONE_GROUP, BlockGroups, in_flight_tokens
from .catalog import find_gpu
from .config import RunConfig
from .grouping import vllm_groups, window_note
from .model import ModelSpec
from .registry import find_policy
from .setting_values import flag_of
from .sizing.deployment import Deployment
from .sizing.engines.vllm import Vllm
from .sizing.stage_bytes import kv_bytes_per_token
from .sizing.terms import sum_bytes

MAX_BLOCKS = 50_000_000  # each is simulated; 1,000 times a large GPU's


@dataclass(frozen=True)
class PoolSize:
    """The KV pool of one rank; every rank holds the same blocks.

    `block_size` in tokens. `kv_bytes_per_token` is per rank, of all layers. `groups` says which of them a block is
    for. `terms` (name, bytes, source) explain the pool: the bytes add up to `pool_bytes`, what is subtracted is
    negative. `max_model_len` is resolved. `notes` are sentences a reader of the result must see.
    """

    num_slots: int
    num_blocks: int
    block_size: int
    kv_bytes_per_token: int
    pool_bytes: int
    max_model_len: int
    groups: BlockGroups
    terms: tuple[tuple[str, int, str], ...]
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        assert self.num_blocks >= 1, self.num_blocks
        slots = self.num_blocks * self.block_size * self.groups.block_token_slots
        assert self.num_slots == slots, (self.num_slots, slots)
        slot_bytes, rest = divmod(self.kv_bytes_per_token, sum(self.groups.token_slots))
        assert not rest, (self.kv_bytes_per_token, self.groups)
        assert self.pool_bytes == slots * slot_bytes, (self.pool_bytes, slots, slot_bytes)
        explained = sum(num_bytes for _, num_bytes, _ in self.terms)
        assert explained == self.pool_bytes, (explained, self.pool_bytes)


class _Simulated(Vllm):
    """vLLM's budget, in blocks that can be simulated."""

    def __init__(self, groups: BlockGroups) -> None:
        self._groups = groups

    def block_bytes(self, deployment: Deployment, stage: int) -> int:
        assert deployment.block_size is not None
        return self._groups.block_bytes(_token_bytes(deployment), deployment.block_size)


def _token_bytes(deployment: Deployment) -> int:
    """Of all layers on a rank, as if none had a window."""
    return kv_bytes_per_token(deployment, stage=0)


def layer_groups(config: RunConfig) -> BlockGroups:
    """How vLLM groups the layers of `config.model` by their windows, whichever policy is simulated.

    One group without a window where it does not, or where its groups cannot be simulated.
    """
    deployment = _deployment(config, config.model_spec)
    return vllm_groups(deployment, hybrid=True) or ONE_GROUP


def size_pool(config: RunConfig) -> PoolSize:
    """The pool that `config` leaves for KV of its policy on each rank.

    `num_gpu_blocks_override`, else `kv_cache_memory_bytes`, else vLLM's arithmetic: memory x
    utilization, less weights, activations, CUDA graphs and what is not tensors; whole blocks of
    what is left. Activations and graphs are uncalibrated estimates where vLLM measures. All policies
    have the same bytes, but for less than a block: the override counts vLLM's blocks, which may be
    those of a group of layers. Raises UserError if not one block fits.
    """
    model = config.model_spec
    deployment = _deployment(config, model)
    found = vllm_groups(deployment, hybrid=not config.disable_hybrid_kv_cache_manager)
    budget = _Simulated(found or ONE_GROUP).budget(deployment, stage=0)
    groups = ONE_GROUP
    if found is not None and find_policy(config.policy).groups_layers:
        groups = found
    block_bytes = groups.block_bytes(_token_bytes(deployment), config.block_size)
    available = sum_bytes(budget)
    num_blocks = available // block_bytes
    if num_blocks < 1:
        shown = " ".join(f"{term.num_bytes / 1e9:+.2f} ({term.name})" for term in budget)
        raise UserError(
            f"no room for KV on {config.gpu}: {shown} = {available / 1e9:.2f} GB, and one block of "
            f"{config.block_size} tokens of {model.name} takes {block_bytes / 1e9:.2f} GB; "
            f"{_remedy(config, block_bytes, available)}"
        )
    if num_blocks > MAX_BLOCKS:
        raise UserError(
            f"the pool has {num_blocks:,} blocks of {config.block_size} tokens; at most {MAX_BLOCKS:,} can be "
            "simulated: use larger blocks or a smaller pool"
        )
    terms = tuple((term.name, term.num_bytes, term.detail) for term in budget)
    tail = available - num_blocks * block_bytes
    if tail:
        terms = (*terms, ("unused_tail", -tail, "the pool has whole blocks only"))
    return PoolSize(
        num_slots=num_blocks * config.block_size * groups.block_token_slots,
        num_blocks=num_blocks,
        block_size=config.block_size,
        kv_bytes_per_token=_token_bytes(deployment),
        pool_bytes=num_blocks * block_bytes,
        max_model_len=deployment.max_model_len,
        groups=groups,
        terms=terms,
        notes=_notes(config, deployment, found, available),
    )


def _deployment(config: RunConfig, model: ModelSpec) -> Deployment:
    return Deployment(
        model=model,
        gpu=find_gpu(config.gpu),
        max_model_len=config.max_model_len or model.max_model_len,
        tensor_parallel_size=config.tensor_parallel_size,
        memory_utilization=config.gpu_memory_utilization,
        block_size=config.block_size,
        kv_cache_dtype=config.kv_cache_dtype,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        num_gpu_blocks_override=config.num_gpu_blocks_override,
        kv_cache_memory_bytes=config.kv_cache_memory_bytes,
        enforce_eager=config.enforce_eager,
    )


def _remedy(config: RunConfig, block_bytes: int, available: int) -> str:
    """What makes `available` bytes a block of `block_bytes`."""
    num_given = config.num_gpu_blocks_override
    if num_given is not None:
        least = -(-block_bytes * num_given // available)
        return f"raise --num-gpu-blocks-override, which counts vLLM's smaller blocks, to {least}"
    if config.kv_cache_memory_bytes is not None:
        return "raise --kv-cache-memory-bytes"
    return (
        "use a larger --gpu, raise --tensor-parallel-size or --gpu-memory-utilization, or lower "
        "--max-num-batched-tokens"
    )


def _notes(
    config: RunConfig, deployment: Deployment, found: BlockGroups | None, available: int
) -> tuple[str, ...]:
    """The same for all policies. `found`: vLLM's groups; `available`: bytes for KV."""
    longest, overridden, longer, disabled = deployment.max_model_len, "", "", ""
    if config.num_gpu_blocks_override is not None and config.kv_cache_memory_bytes is not None:
        overridden = "--kv-cache-memory-bytes has no effect: --num-gpu-blocks-override is given"
    groups = found or ONE_GROUP
    num_blocks = available // groups.block_bytes(_token_bytes(deployment), config.block_size)
    in_flight = in_flight_tokens(config.max_num_batched_tokens, config.async_scheduling)
    wanted = groups.blocks_to_start(config.block_size, in_flight, longest)
    if wanted >= num_blocks:  # one is the null block
        longer = (
            f"max_model_len is {longest:,} tokens, for which vLLM wants {wanted:,} blocks beside the null block, of "
            f"{num_blocks:,}: vLLM would not start; lower --max-model-len to what your requests need"
        )
    if config.disable_hybrid_kv_cache_manager and found == vllm_groups(deployment, hybrid=True):
        disabled = (
            f"--disable-hybrid-kv-cache-manager has no effect on {deployment.model.name}: all its layers share a block "
            "table without it"
        )
    windows = window_note(deployment, found, config.num_gpu_blocks_override)
    return tuple(
        note for note in (overridden, *_memory_notes(config), longer, disabled, windows) if note
    )


def _memory_notes(config: RunConfig) -> Iterator[str]:
    """On settings that change what is left for the pool, and where it is given what they leave alone."""
    given = [
        flag_of(name)
        for name in ("num_gpu_blocks_override", "kv_cache_memory_bytes")
        if getattr(config, name) is not None
    ]
    if config.enforce_eager and given:
        yield f"--enforce-eager has no effect: {given[0]} gives the pool, and step times do not tell eager ones apart"
    elif config.enforce_eager:
        yield "--enforce-eager leaves the memory of CUDA graphs to the pool; step times do not tell eager ones apart"
    if config.quantization is not None and given:
        yield f"--quantization does not change the pool: {given[0]} gives it"
