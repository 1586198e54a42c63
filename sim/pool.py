"""How many KV blocks a GPU holds, and why."""

from dataclasses import dataclass

from kvtwin.traces import UserError

from .catalog import find_gpu, find_model
from .config import RunConfig
from .model import ModelSpec
from .sizing.deployment import Deployment
from .sizing.engines.vllm import Vllm
from .sizing.stage_bytes import kv_bytes_per_token
from .sizing.terms import sum_bytes

MAX_BLOCKS = 50_000_000  # each is simulated; 1,000 times a large GPU's


@dataclass(frozen=True)
class PoolSize:
    """The KV pool of one rank; every rank holds the same blocks.

    `kv_bytes_per_token` is per rank. `terms` (name, bytes, source) explain the pool: the bytes add
    up to `pool_bytes`, what is subtracted is negative. `max_model_len` is resolved. `notes` are
    sentences a reader of the result must see.
    """

    num_slots: int
    num_blocks: int
    block_size: int
    kv_bytes_per_token: int
    pool_bytes: int
    max_model_len: int
    terms: tuple[tuple[str, int, str], ...]
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        assert self.num_blocks >= 1, self.num_blocks
        slots = self.num_blocks * self.block_size
        assert self.num_slots == slots, (self.num_slots, slots)
        assert self.pool_bytes == slots * self.kv_bytes_per_token, (self.pool_bytes, slots)
        explained = sum(num_bytes for _, num_bytes, _ in self.terms)
        assert explained == self.pool_bytes, (explained, self.pool_bytes)


class _Simulated(Vllm):
    """vLLM's budget, for a pool in which every layer stores every token and no block is reserved."""

    def block_bytes(self, deployment: Deployment, stage: int) -> int:
        assert deployment.block_size is not None
        return deployment.block_size * kv_bytes_per_token(deployment, stage)


def size_pool(config: RunConfig) -> PoolSize:
    """The pool that `config` leaves for KV on each rank.

    `num_gpu_blocks_override`, else `kv_cache_memory_bytes`, else vLLM's arithmetic: memory x
    utilization, less weights, activations, CUDA graphs and what is not tensors; whole blocks of
    what is left. Activations and graphs are uncalibrated estimates where vLLM measures. Raises
    UserError if not one block fits.
    """
    model = find_model(config.model)
    deployment = _deployment(config, model)
    token_bytes = kv_bytes_per_token(deployment, stage=0)
    block_bytes = config.block_size * token_bytes
    budget = _Simulated().budget(deployment, stage=0)
    available = sum_bytes(budget)
    num_blocks = available // block_bytes
    if num_blocks < 1:
        shown = " ".join(f"{term.num_bytes / 1e9:+.2f} ({term.name})" for term in budget)
        raise UserError(
            f"no room for KV on {config.gpu}: {shown} = {available / 1e9:.2f} GB, and one block of "
            f"{config.block_size} tokens of {model.name} takes {block_bytes / 1e9:.2f} GB; "
            f"{_remedy(config)}"
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
        num_slots=num_blocks * config.block_size,
        num_blocks=num_blocks,
        block_size=config.block_size,
        kv_bytes_per_token=token_bytes,
        pool_bytes=num_blocks * block_bytes,
        max_model_len=deployment.max_model_len,
        terms=terms,
        notes=_notes(config, model, num_blocks * config.block_size),
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
    )


def _remedy(config: RunConfig) -> str:
    if config.num_gpu_blocks_override is None and config.kv_cache_memory_bytes is not None:
        return "raise --kv-cache-memory-bytes"
    return (
        "use a larger --gpu, raise --tensor-parallel-size or --gpu-memory-utilization, or lower "
        "--max-num-batched-tokens"
    )


def _notes(config: RunConfig, model: ModelSpec, num_slots: int) -> tuple[str, ...]:
    overridden = longer = ""
    if config.num_gpu_blocks_override is not None and config.kv_cache_memory_bytes is not None:
        overridden = "--kv-cache-memory-bytes has no effect: --num-gpu-blocks-override is given"
    longest = config.max_model_len or model.max_model_len
    if longest > num_slots:
        longer = (
            f"max_model_len is {longest:,} tokens, the pool holds {num_slots:,}: vLLM would not start; lower "
            "--max-model-len to what your requests need"
        )
    return tuple(note for note in (overridden, longer, model.window_note) if note)
