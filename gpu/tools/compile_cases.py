"""The configurations of every kernel that are compiled ahead: a value, and how it is launched."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import torch

from ..arguments import SplitPlan, SwapMove, allocate_host_pool
from ..kernels import (
    contiguous_decode,
    copy_blocks,
    paged_decode,
    paged_prefill,
    store_kv,
    swap_blocks,
)

NUM_KV_HEADS = 4
NUM_BLOCKS = 4
NUM_SEQS = 2
NUM_TOKENS = 8


@dataclass(frozen=True)
class CompileCase:
    """One operation on one kind of pool. `group`: query heads a KV head; `window` in tokens."""

    operation: str
    dtype: torch.dtype = torch.float16
    head_dim: int = 128
    group: int = 4
    block_size: int = 16
    layout: str = "NHD"
    num_splits: int = 4
    window: int = 0
    soft_cap: float = 0.0
    has_sinks: bool = False

    def __str__(self) -> str:
        """Return what differs from the plain case, such as `bfloat16, head_dim 64`."""
        plain = CompileCase(self.operation)
        words = [
            f"{field.name} {getattr(self, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(plain, field.name)
        ]
        return ", ".join(words).replace("dtype torch.", "").replace("has_sinks True", "sinks") or (
            "float16, head_dim 128, group 4, block_size 16, NHD"
        )

    def launch(self) -> None:
        """Call the operation with zeros on the CPU; of all numbers only strides are specialised."""
        _OPERATIONS[self.operation](self)

    @property
    def is_held_to_limits(self) -> bool:
        """Whether the code must have no spills, 16-byte loads of K and V, and matrix dots."""
        return self.dtype.itemsize == 2 and self.head_dim <= 128


def compile_cases(*, is_quick: bool) -> Iterator[CompileCase]:
    """Yield all cases; only the plain ones, and one or two of each axis, if `is_quick`."""
    for operation in ("paged_decode", "paged_prefill"):
        plain = CompileCase(operation)
        everything = replace(plain, window=100, soft_cap=30.0, has_sinks=True)
        if operation == "paged_decode":
            yield replace(plain, num_splits=1)
        yield plain
        yield replace(plain, dtype=torch.bfloat16)
        yield replace(plain, head_dim=64, group=1)
        yield replace(plain, head_dim=96, group=7)
        yield replace(everything, dtype=torch.bfloat16, num_splits=1)
        yield replace(plain, block_size=1)
        yield replace(plain, block_size=2048)
        if is_quick:
            continue
        yield replace(everything, num_splits=1, block_size=1)
        yield replace(everything, num_splits=1, head_dim=64)
        yield replace(plain, dtype=torch.float32)
        yield from (replace(plain, head_dim=head_dim) for head_dim in (64, 80, 96, 256))
        yield from (replace(plain, dtype=torch.bfloat16, head_dim=d) for d in (64, 96, 256))
        yield from (replace(plain, group=group) for group in (1, 2, 3, 5, 7, 8, 16))
        yield replace(plain, block_size=7)
        yield from (replace(plain, layout=layout) for layout in ("HND", "interleaved"))
        yield replace(plain, window=100)
        yield replace(plain, soft_cap=30.0)
        yield replace(plain, has_sinks=True, num_splits=1)
    yield CompileCase("contiguous_decode")
    if not is_quick:
        yield CompileCase("contiguous_decode", dtype=torch.bfloat16)
        yield CompileCase("contiguous_decode", dtype=torch.float32)
    for operation in ("store_kv", "copy_blocks", "swap_blocks"):
        plain = CompileCase(operation)
        yield plain
        if is_quick:
            continue
        yield replace(plain, dtype=torch.bfloat16)
        yield replace(plain, dtype=torch.float32)
        yield replace(plain, head_dim=96)
        yield replace(plain, block_size=1)
        yield replace(plain, layout="HND")
        yield replace(plain, layout="interleaved")


def _pools(case: CompileCase) -> tuple[torch.Tensor, torch.Tensor]:
    """Return K and V pools [num_blocks, block_size, num_kv_heads, head_dim] of the case's layout."""
    shape = (NUM_BLOCKS, case.block_size, NUM_KV_HEADS, case.head_dim)
    if case.layout == "interleaved":
        both = torch.zeros(shape[0], 2, *shape[1:], dtype=case.dtype)
        return both[:, 0], both[:, 1]
    if case.layout == "HND":
        shape = (shape[0], shape[2], shape[1], shape[3])
    pools = (torch.zeros(shape, dtype=case.dtype), torch.zeros(shape, dtype=case.dtype))
    k_pool, v_pool = (pool.transpose(1, 2) if case.layout == "HND" else pool for pool in pools)
    return k_pool, v_pool


def _query(case: CompileCase, num_tokens: int) -> torch.Tensor:
    return torch.zeros(num_tokens, NUM_KV_HEADS * case.group, case.head_dim, dtype=case.dtype)


def _scores(case: CompileCase) -> dict[str, float | torch.Tensor | None]:
    sinks = torch.zeros(NUM_KV_HEADS * case.group) if case.has_sinks else None
    return {"scale": 0.1, "window": case.window, "soft_cap": case.soft_cap, "sinks": sinks}


def _lens() -> torch.Tensor:
    return torch.full((NUM_SEQS,), NUM_TOKENS, dtype=torch.int32)


def _decode(case: CompileCase) -> None:
    tables = torch.zeros(NUM_SEQS, NUM_BLOCKS, dtype=torch.int32)
    split = SplitPlan(case.num_splits)
    query = _query(case, NUM_SEQS)
    paged_decode(query, *_pools(case), tables, _lens(), split=split, **_scores(case))


def _contiguous(case: CompileCase) -> None:
    k, v = (torch.zeros(NUM_SEQS, 64, NUM_KV_HEADS, case.head_dim, dtype=case.dtype) for _ in "kv")
    split = SplitPlan(case.num_splits)
    contiguous_decode(_query(case, NUM_SEQS), k, v, _lens(), split=split, **_scores(case))


def _prefill(case: CompileCase) -> None:
    tables = torch.zeros(NUM_SEQS, NUM_BLOCKS, dtype=torch.int32)
    starts = torch.arange(0, NUM_TOKENS + 1, NUM_TOKENS // NUM_SEQS, dtype=torch.int32)
    query = _query(case, NUM_TOKENS)
    paged_prefill(query, *_pools(case), tables, starts, _lens(), **_scores(case))


def _store(case: CompileCase) -> None:
    rows = torch.zeros(NUM_TOKENS, NUM_KV_HEADS, case.head_dim, dtype=case.dtype)
    store_kv(rows, rows.clone(), *_pools(case), torch.arange(NUM_TOKENS))


def _copy(case: CompileCase) -> None:
    copy_blocks(*_pools(case), torch.tensor([[0, 1], [2, 3]]))


def _swap(case: CompileCase) -> None:
    k_pool, v_pool = _pools(case)
    moves = [SwapMove(is_out=True, device_block=1, host_block=0)]
    moves.append(SwapMove(is_out=False, device_block=2, host_block=0))
    swap_blocks(k_pool, v_pool, allocate_host_pool(k_pool, 1), moves)


_OPERATIONS: dict[str, Callable[[CompileCase], None]] = {
    "paged_decode": _decode,
    "paged_prefill": _prefill,
    "contiguous_decode": _contiguous,
    "store_kv": _store,
    "copy_blocks": _copy,
    "swap_blocks": _swap,
}
