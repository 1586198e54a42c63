"""What would change if one setting did: each change sized again."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvtwin.traces import UserError

from ..checkpoint import quantize
from ..model import KV_DTYPE_BYTES, ModelSpec
from .accounting import Accounting
from .deployment import Deployment, Given
from .estimates import activations_term, weights_term
from .size import Sizing, size

TENSOR_PARALLEL_SIZES = (2, 4, 8)
DATA_PARALLEL_SIZES = (2, 4)
UTILIZATIONS = (0.85, 0.95)
BLOCK_SIZES = (16, 32, 64, 128)
STEP_TOKENS = (2048, 8192, 16384)
QUANTIZATIONS = ("fp8", "awq")


@dataclass(frozen=True)
class Lever:
    """One change, and what it makes of all replicas together; or why it cannot be made.

    `num_tokens`: KV tokens, as the engine counts them. `concurrency`: requests of max_model_len.
    """

    change: str
    num_gpus: int
    pool_bytes: int
    num_tokens: int
    concurrency: float
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
            problem=sizing.problem,
        )


def levers(deployment: Deployment, accounting: Accounting) -> list[Lever]:
    """The deployment as it is, then each change that differs from it and that the model allows."""
    found = [Lever.of("as asked", size(deployment, accounting))]
    for change, changed in _changes(deployment, accounting):
        try:
            found.append(Lever.of(change, size(changed, accounting)))
        except UserError:  # the heads do not divide over so many ranks
            continue
    return found


def _changes(asked: Deployment, accounting: Accounting) -> Iterator[tuple[str, Deployment]]:
    """(what to change, the deployment with it), those that leave the hardware alone first."""
    base = _same_memory(asked, accounting)
    memory_is_given = base.kv_cache_memory_bytes is not None
    if KV_DTYPE_BYTES[base.kv_cache_dtype] > 1:
        yield "--kv-cache-dtype fp8", replace(base, kv_cache_dtype="fp8")
    for block_size in BLOCK_SIZES:
        if block_size != size(base, accounting).pool.block_size:
            yield f"--block-size {block_size}", replace(base, block_size=block_size)
    if not memory_is_given:
        for utilization in UTILIZATIONS:
            if utilization != accounting.utilization(base):
                flag = f"{accounting.utilization_flag} {utilization:g}"
                yield flag, replace(base, memory_utilization=utilization)
        for tokens in STEP_TOKENS:
            if tokens != accounting.max_num_batched_tokens(base):
                flag = f"--max-num-batched-tokens {tokens}"
                changed = replace(base, max_num_batched_tokens=tokens)
                yield flag, _scaled(base, changed, accounting)
        if not base.enforce_eager:
            changed = replace(base, enforce_eager=True, cuda_graphs=None)
            yield "--enforce-eager", changed
        for name in QUANTIZATIONS:
            if (model := _quantized(base.model, name)) is not None:
                changed = replace(base, model=model)
                yield f"--quantization {name}", _scaled(base, changed, accounting)
    for ranks in TENSOR_PARALLEL_SIZES:
        if ranks > base.tensor_parallel_size:
            changed = replace(base, tensor_parallel_size=ranks)
            yield f"--tensor-parallel-size {ranks}", _scaled(base, changed, accounting)
    for replicas in DATA_PARALLEL_SIZES:
        if replicas > base.data_parallel_size:
            yield f"--data-parallel-size {replicas}", replace(base, data_parallel_size=replicas)


def _same_memory(asked: Deployment, accounting: Accounting) -> Deployment:
    """With the bytes of a pool that was given in blocks: a change must not change the memory."""
    if asked.num_gpu_blocks_override is None:
        return asked
    pool_bytes = size(asked, accounting).pool.pool_bytes
    return replace(asked, num_gpu_blocks_override=None, kv_cache_memory_bytes=pool_bytes)


def _quantized(model: ModelSpec, name: str) -> ModelSpec | None:
    """The model with such weights, or None where they would not be smaller."""
    try:
        quantized = quantize(model, name)
    except UserError:  # it is quantised in another way already
        return None
    return quantized if quantized.weight_bytes < model.weight_bytes else None


def _scaled(before: Deployment, after: Deployment, accounting: Accounting) -> Deployment:
    """`after` with weights and activations that were given for `before` scaled like the estimates."""
    return replace(
        after,
        weights=_like(before.weights, _weights(before), _weights(after)),
        activations=_like(
            before.activations, _activations(before, accounting), _activations(after, accounting)
        ),
    )


def _like(given: Given | None, before: int, after: int) -> Given | None:
    if given is None or before == after:
        return given
    detail = f"{given.detail}, scaled like the estimate"
    return Given(round(given.num_bytes * after / before), "estimate", detail)


def _weights(deployment: Deployment) -> int:
    return weights_term(replace(deployment, weights=None), stage=0).num_bytes


def _activations(deployment: Deployment, accounting: Accounting) -> int:
    return activations_term(
        replace(deployment, activations=None),
        stage=0,
        num_batched_tokens=accounting.max_num_batched_tokens(deployment),
        num_sampled_sequences=accounting.max_num_seqs(deployment),
    ).num_bytes
