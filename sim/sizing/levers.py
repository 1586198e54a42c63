"""What would change if one setting did: each change sized again."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from kvtwin.traces import UserError

from ..checkpoint import quantize
from ..model import KV_DTYPE_BYTES, ModelSpec
from .accounting import Accounting
from .changed import changed
from .deployment import Deployment
from .size import Sizing, size

TENSOR_PARALLEL_SIZES = (2, 4, 8)
DATA_PARALLEL_SIZES = (2, 4)
UTILIZATIONS = (0.85, 0.95)
BLOCK_SIZES = (16, 32, 64, 128)
STEP_TOKENS = (2048, 8192, 16384)
STEP_SEQUENCES = (128, 256)
QUANTIZATIONS = ("fp8", "awq")


@dataclass(frozen=True)
class Lever:
    """One change, and what it makes of all replicas together; or why it cannot be made.

    `num_tokens`: KV tokens, as the engine counts them. `concurrency`: requests of max_model_len.
    `longest_allowed`: tokens of the longest request, at most max_model_len. `estimated`: a term of
    the memory is an estimate, so these figures are, too.
    """

    change: str
    num_gpus: int
    pool_bytes: int
    num_tokens: int
    concurrency: float
    longest_allowed: int
    estimated: bool
    problem: str

    @classmethod
    def of(cls, change: str, sizing: Sizing) -> "Lever":
        deployment = sizing.deployment
        replicas = deployment.data_parallel_size
        return cls(
            change=change,
            num_gpus=deployment.num_gpus,
            pool_bytes=sizing.pool.pool_bytes,
            num_tokens=replicas * sizing.pool.num_tokens,
            concurrency=float(replicas * sizing.concurrency),
            longest_allowed=sizing.longest_allowed,
            estimated=any(term.source == "estimate" for term in sizing.terms),
            problem=sizing.problem,
        )


def levers(deployment: Deployment, accounting: Accounting) -> list[Lever]:
    """The deployment as it is, then each change that differs from it and that the model allows."""
    found = [Lever.of("as asked", size(deployment, accounting))]
    for change, other in _changes(deployment, accounting):
        try:
            found.append(Lever.of(change, size(other, accounting)))
        except UserError:  # the heads do not divide over so many ranks
            continue
    return found


def _changes(asked: Deployment, accounting: Accounting) -> Iterator[tuple[str, Deployment]]:
    """(what to change, the deployment with it), those that leave the hardware alone first."""
    base = _same_memory(asked, accounting)
    memory_is_given = base.kv_cache_memory_bytes is not None

    def with_(**settings: Any) -> Deployment:
        return changed(base, accounting, **settings)

    if KV_DTYPE_BYTES[base.kv_cache_dtype] > 1:
        yield "--kv-cache-dtype fp8", with_(kv_cache_dtype="fp8")
    for block_size in BLOCK_SIZES:
        if block_size != size(base, accounting).pool.block_size:
            yield f"--block-size {block_size}", with_(block_size=block_size)
    if not memory_is_given:
        yield from _memory_changes(base, accounting, with_)
    for ranks in TENSOR_PARALLEL_SIZES:
        if ranks > base.tensor_parallel_size:
            yield f"--tensor-parallel-size {ranks}", with_(tensor_parallel_size=ranks)
    for replicas in DATA_PARALLEL_SIZES:
        if replicas > base.data_parallel_size:
            yield f"--data-parallel-size {replicas}", with_(data_parallel_size=replicas)


def _memory_changes(
    base: Deployment, accounting: Accounting, with_: Callable[..., Deployment]
) -> Iterator[tuple[str, Deployment]]:
    """Those that leave more or less memory for KV."""
    for utilization in UTILIZATIONS:
        if utilization != accounting.utilization(base):
            flag = f"{accounting.utilization_flag} {utilization:g}"
            yield flag, with_(memory_utilization=utilization, memory_utilization_source="given")
    for tokens in STEP_TOKENS:
        if tokens != accounting.max_num_batched_tokens(base):
            yield f"--max-num-batched-tokens {tokens}", with_(max_num_batched_tokens=tokens)
    for num_seqs in STEP_SEQUENCES:
        if num_seqs < accounting.max_num_seqs(base):
            yield f"--max-num-seqs {num_seqs}", with_(max_num_seqs=num_seqs)
    if not base.enforce_eager:
        yield "--enforce-eager", with_(enforce_eager=True)
    for name in QUANTIZATIONS:
        if (model := quantized(base.model, name)) is not None:
            yield f"--quantization {name}", with_(model=model)


def _same_memory(asked: Deployment, accounting: Accounting) -> Deployment:
    """With the bytes of a pool that was given in blocks: a change must not change the memory."""
    if asked.num_gpu_blocks_override is None:
        return asked
    pool_bytes = size(asked, accounting).pool.pool_bytes
    return replace(asked, num_gpu_blocks_override=None, kv_cache_memory_bytes=pool_bytes)


def quantized(model: ModelSpec, name: str) -> ModelSpec | None:
    """The model with such weights, or None where they would not be smaller."""
    try:
        quantized = quantize(model, name)
    except UserError:  # it is quantised in another way already
        return None
    return quantized if quantized.weight_bytes < model.weight_bytes else None
