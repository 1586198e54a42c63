"""Tile sizes, warps and stages by head dim and element size, and the number of splits.

None of it was tuned on a GPU: the sizes are those whose compiled code neither spills nor exceeds
the shared memory of sm_80 and sm_90.
"""

from dataclasses import dataclass
from numbers import Integral

import torch

from ..errors import KernelInputError

# Below this a split's own query, partial result and launch cost more than they save: a guess.
MIN_SPLIT_TOKENS = 256
MAX_SPLITS = 64
LEAST_TILE = 16  # keys: matrix instructions multiply by 16 or more of them
PROGRAMS_PER_MULTIPROCESSOR = 2


# Kernels count tokens in 32 bits; the last split begins at most this far behind the first.
MAX_SPLIT_REACH = 2**30


@dataclass(frozen=True)
class SplitPlan:
    """At most `num_splits` parts of the KV length, each of `min_split_tokens` or more."""

    num_splits: int
    min_split_tokens: int = MIN_SPLIT_TOKENS

    def __post_init__(self) -> None:
        for name, limit in (("num_splits", MAX_SPLITS), ("min_split_tokens", MAX_SPLIT_REACH)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or not 1 <= value <= limit:
                raise KernelInputError(f"{self}: {name} must be an integer from 1 to {limit}")
        if self.num_splits * self.min_split_tokens > MAX_SPLIT_REACH:
            raise KernelInputError(
                f"{self}: {self.num_splits * self.min_split_tokens} tokens at least; "
                f"they must be {MAX_SPLIT_REACH} or less"
            )


@dataclass(frozen=True)
class Tuning:
    """`tile_tokens` keys at a time; `query_rows`: tokens x heads of a prefill tile."""

    tile_tokens: int
    num_warps: int
    num_stages: int
    query_rows: int = 0

    def __post_init__(self) -> None:
        least = {"tile_tokens": LEAST_TILE, "num_warps": 1, "query_rows": 0}
        for name, number in least.items():
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < number or value & (value - 1):
                raise KernelInputError(f"{self}: {name} must be a power of two, {number} or more")
        if not isinstance(self.num_stages, Integral) or self.num_stages < 1:
            raise KernelInputError(f"{self}: num_stages must be an integer of 1 or more")


def padded(number: int, at_least: int) -> int:
    """The power of two that holds `number`; matrix instructions need at least 16 a side."""
    return max(at_least, 1 << (number - 1).bit_length())


def decode_tuning(head_dim: int, dtype: torch.dtype) -> Tuning:
    """Tile of a decode split."""
    row_bytes = padded(head_dim, 16) * dtype.itemsize
    if row_bytes <= 256:
        return Tuning(64, num_warps=4, num_stages=3)
    if row_bytes <= 512:
        return Tuning(32, num_warps=4, num_stages=3)
    return Tuning(32, num_warps=4, num_stages=2) if row_bytes <= 1024 else Tuning(16, 4, 2)


def prefill_tuning(head_dim: int, dtype: torch.dtype) -> Tuning:
    """Tiles of a prefill program."""
    row_bytes = padded(head_dim, 16) * dtype.itemsize
    if dtype.itemsize == 4:  # no matrix instructions: the scores of a tile live in registers
        return Tuning(16, num_warps=4, num_stages=2, query_rows=16)
    if row_bytes <= 128:
        return Tuning(64, num_warps=8, num_stages=3, query_rows=128)
    if row_bytes <= 256:
        # 64 keys at a time spill on sm_80 with sinks, or with a block per token.
        return Tuning(32, num_warps=8, num_stages=3, query_rows=128)
    if row_bytes <= 512:
        return Tuning(32, num_warps=8, num_stages=2, query_rows=64)
    return Tuning(16, num_warps=4, num_stages=2, query_rows=16)


def num_multiprocessors(device: torch.device) -> int:
    """Of a CUDA device; 1 elsewhere, so that nothing is split for speed's sake."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def plan_splits(
    total_context_tokens: int, max_context_len: int, num_kv_heads: int, multiprocessors: int
) -> SplitPlan:
    """Splits over the KV length that give every multiprocessor about two equal programs.

    A pure function of its arguments: equal launches are split equally. The longest sequence is cut
    into pieces of an equal share of all work, but not below MIN_SPLIT_TOKENS.
    """
    programs = PROGRAMS_PER_MULTIPROCESSOR * multiprocessors
    share_tokens = -(-total_context_tokens * num_kv_heads // programs)
    split_tokens = max(share_tokens, MIN_SPLIT_TOKENS)
    return SplitPlan(max(1, min(MAX_SPLITS, -(-max_context_len // split_tokens))))
