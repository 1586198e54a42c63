"""The smallest single change of each setting that makes a deployment work, each one sized again."""

from collections.abc import Callable, Iterator

from kvtwin.traces import UserError

from ..model import KV_DTYPE_BYTES
from .accounting import Accounting
from .bisect import largest_that
from .changed import changed
from .deployment import Deployment
from .levers import QUANTIZATIONS, quantized
from .size import Sizing, size

LARGEST_UTILIZATION_PERCENT = 99
LARGEST_TENSOR_PARALLEL = 64
SMALLEST_STEP_TOKENS = 512
SMALLEST_STEP_SEQUENCES = 32


def changes_that_work(sizing: Sizing, accounting: Accounting) -> tuple[str, ...]:
    """What would make it work, a change a text, those of nothing but settings first.

    Empty if it works, or if no single change of these helps.
    """
    if sizing.works:
        return ()
    found = (change(sizing, accounting) for change in _CHANGES)
    return tuple(text for text in found if text)


def _works(deployment: Deployment, accounting: Accounting) -> bool:
    try:
        return size(deployment, accounting).works
    except UserError:  # the heads do not divide over so many ranks
        return False


def _shorter(sizing: Sizing, accounting: Accounting) -> str:
    """The engine plans by max_model_len, so a length is judged by a sizing that has it."""
    deployment = sizing.deployment
    longest = largest_that(
        lambda length: _works(changed(deployment, accounting, max_model_len=length), accounting),
        deployment.max_model_len,
    )
    return f"lower --max-model-len to {longest:,}" if longest else ""


def _more_utilization(sizing: Sizing, accounting: Accounting) -> str:
    deployment = sizing.deployment
    if _pool_is_given(deployment):
        return ""
    first = int(accounting.utilization(deployment) * 100) + 1
    for percent in range(first, LARGEST_UTILIZATION_PERCENT + 1):
        if _works(changed(deployment, accounting, memory_utilization=percent / 100), accounting):
            return f"raise {accounting.utilization_flag} to {percent / 100:g}"
    return ""


def _smaller_steps(sizing: Sizing, accounting: Accounting) -> str:
    deployment = sizing.deployment
    if _pool_is_given(deployment):
        return ""
    tokens = accounting.max_num_batched_tokens(deployment)
    while tokens > SMALLEST_STEP_TOKENS:
        tokens //= 2
        if _works(changed(deployment, accounting, max_num_batched_tokens=tokens), accounting):
            return f"lower --max-num-batched-tokens to {tokens:,}"
    return ""


def _smaller_blocks(sizing: Sizing, accounting: Accounting) -> str:
    deployment = sizing.deployment
    if deployment.num_gpu_blocks_override is not None:
        return ""
    block_size = deployment.block_size or sizing.pool.block_size
    while block_size > 1:
        block_size //= 2
        if _works(changed(deployment, accounting, block_size=block_size), accounting):
            return f"lower --block-size to {block_size}"
    return ""


def _fp8(sizing: Sizing, accounting: Accounting) -> str:
    deployment = sizing.deployment
    if KV_DTYPE_BYTES[deployment.kv_cache_dtype] == 1:
        return ""
    works = _works(changed(deployment, accounting, kv_cache_dtype="fp8"), accounting)
    return "use --kv-cache-dtype fp8" if works else ""


def _fewer_sequences(sizing: Sizing, accounting: Accounting) -> str:
    deployment = sizing.deployment
    if _pool_is_given(deployment):
        return ""
    num_seqs = accounting.max_num_seqs(deployment)
    while num_seqs > SMALLEST_STEP_SEQUENCES:
        num_seqs //= 2
        if _works(changed(deployment, accounting, max_num_seqs=num_seqs), accounting):
            return f"lower --max-num-seqs to {num_seqs:,}"
    return ""


def _smaller_weights(sizing: Sizing, accounting: Accounting) -> str:
    deployment = sizing.deployment
    if _pool_is_given(deployment):
        return ""
    for name in QUANTIZATIONS:
        model = quantized(deployment.model, name)
        if model is not None and _works(changed(deployment, accounting, model=model), accounting):
            return f"use --quantization {name}"
    return ""


def _more_ranks(sizing: Sizing, accounting: Accounting) -> str:
    deployment = sizing.deployment
    for ranks in _doublings(deployment.tensor_parallel_size, LARGEST_TENSOR_PARALLEL):
        if _works(changed(deployment, accounting, tensor_parallel_size=ranks), accounting):
            return f"raise --tensor-parallel-size to {ranks}"
    return ""


def _larger_pool(sizing: Sizing, accounting: Accounting) -> str:
    deployment, pool = sizing.deployment, sizing.pool
    needed = pool.bytes_to_admit(deployment.max_model_len)
    if deployment.num_gpu_blocks_override is not None:
        num_blocks = _smallest_that(
            lambda number: _works(
                changed(deployment, accounting, num_gpu_blocks_override=number), accounting
            ),
            guess=-(-needed // pool.block_bytes),
        )
        return f"raise --num-gpu-blocks-override to {num_blocks:,}" if num_blocks else ""
    if deployment.kv_cache_memory_bytes is not None:
        num_bytes = _smallest_that(
            lambda number: _works(
                changed(deployment, accounting, kv_cache_memory_bytes=number), accounting
            ),
            guess=needed,
        )
        return f"raise --kv-cache-memory-bytes to {num_bytes}" if num_bytes else ""
    return ""


def _smallest_that(holds: Callable[[int], bool], guess: int) -> int:
    """The smallest positive number that `holds`, or 0 if none up to 16 times the guess does.

    `holds` must be false up to some number and true beyond it.
    """
    for limit in (guess, 2 * guess, 16 * guess):
        if holds(limit):
            return largest_that(lambda number: not holds(number), limit - 1) + 1
    return 0


def _pool_is_given(deployment: Deployment) -> bool:
    given = (deployment.num_gpu_blocks_override, deployment.kv_cache_memory_bytes)
    return any(number is not None for number in given)


def _doublings(number: int, limit: int) -> Iterator[int]:
    while 2 * number <= limit:
        number *= 2
        yield number


_CHANGES: tuple[Callable[[Sizing, Accounting], str], ...] = (
    _shorter,
    _more_utilization,
    _smaller_steps,
    _fewer_sequences,
    _smaller_blocks,
    _larger_pool,
    _fp8,
    _smaller_weights,
    _more_ranks,
)
