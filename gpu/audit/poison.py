"""What slots hold that nobody has written: NaNs with a payload that no computation makes."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch

# Quiet NaNs by dtype, as (integer of that width, bits). The payload tells them from the NaNs of
# arithmetic, whose payload is 0 on every machine that torch runs on.
_PATTERNS: dict[torch.dtype, tuple[torch.dtype, int]] = {
    torch.float16: (torch.int16, 0x7EAD),
    torch.bfloat16: (torch.int16, 0x7FED),
    torch.float32: (torch.int32, 0x7FCDEAD5),
}
WORD_BYTES = 8


def poison(pools: Iterable[torch.Tensor], runs: Sequence[tuple[int, int]]) -> None:
    """Fill runs of slots, half-open and given as (first slot, number of slots), in each pool.

    Pools are contiguous, [num_blocks, block_size, ...] with the same number of slots; runs lie in them.
    """
    if not runs:
        return
    slots = np.concatenate([np.arange(first, first + num) for first, num in runs])
    for pool in pools:
        integer, bits = _PATTERNS[pool.dtype]
        by_slot = pool.view(pool.shape[0] * pool.shape[1], -1).view(integer)
        by_slot.index_fill_(0, torch.from_numpy(slots).to(pool.device), bits)


def poison_word(dtype: torch.dtype) -> int:
    """64 bits of a slot that is poisoned throughout, as int64."""
    integer, bits = _PATTERNS[dtype]
    width = 16 if integer is torch.int16 else 32
    return sum(bits << at for at in range(0, 64, width))


def words_of(pool: torch.Tensor) -> torch.Tensor:
    """The bits of each slot of a contiguous pool: int64 [num_slots, words], sharing its memory."""
    by_slot = pool.view(pool.shape[0] * pool.shape[1], -1)
    num_bytes = by_slot.shape[1] * by_slot.element_size()
    assert num_bytes % WORD_BYTES == 0, (
        f"a slot of {num_bytes} bytes; an audit needs a multiple of {WORD_BYTES}"
    )
    return by_slot.view(torch.int64)


def is_poison(pool: torch.Tensor) -> torch.Tensor:
    """Which slots of a contiguous pool are poison, bit by bit: bool [num_slots]."""
    return (words_of(pool) == poison_word(pool.dtype)).all(dim=1)
