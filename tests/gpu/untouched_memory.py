"""Tensors of billions of elements that take no memory until they are touched."""

import math
import mmap
from collections.abc import Sequence

import torch

MAP_NORESERVE = 0x4000  # Linux; Python names it from 3.13 on


def untouched(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Zeros with these strides, in pages of their own that nothing backs before they are touched."""
    last = sum(stride * (extent - 1) for stride, extent in zip(strides, shape, strict=True))
    num_bytes = (last + 1) * dtype.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    pages = mmap.mmap(-1, num_bytes, flags=flags)
    return torch.frombuffer(pages, dtype=dtype).as_strided(tuple(shape), tuple(strides))


def untouched_contiguous(
    shape: Sequence[int], dtype: torch.dtype, order: Sequence[int] | None = None
) -> torch.Tensor:
    """Zeros of `shape` whose dimensions lie in memory in `order`, the outermost first."""
    order = order or range(len(shape))
    inner = {dim: order[place + 1 :] for place, dim in enumerate(order)}
    strides = [math.prod(shape[other] for other in inner[dim]) for dim in range(len(shape))]
    return untouched(shape, strides, dtype)
