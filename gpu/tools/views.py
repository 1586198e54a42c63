"""Which addresses are elements of a strided tensor."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class TensorView:
    """The bytes of a tensor's elements: `[start, end)` less the gaps that its strides leave.

    `dims` are (stride in bytes, extent), the largest stride first, and empty where there are no gaps.
    Elements must not overlap, but for expanded dimensions (stride 0).
    """

    name: str
    start: int
    end: int
    element_bytes: int
    dims: tuple[tuple[int, int], ...]
    description: str

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> "TensorView":
        """Return the view of a tensor of at least one element; `name` is what messages call it."""
        element_bytes = tensor.element_size()
        dims = sorted(
            (
                (stride * element_bytes, extent)
                for stride, extent in zip(tensor.stride(), tensor.shape, strict=True)
                if extent > 1 and stride > 0
            ),
            reverse=True,
        )
        num_bytes = element_bytes + sum(stride * (extent - 1) for stride, extent in dims)
        num_element_bytes = element_bytes * int(np.prod([1] + [extent for _, extent in dims]))
        return cls(
            name=name,
            start=tensor.data_ptr(),
            end=tensor.data_ptr() + num_bytes,
            element_bytes=element_bytes,
            dims=() if num_bytes == num_element_bytes else tuple(dims),
            description=f"{name} {list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}",
        )

    def holds(self, addresses: np.ndarray[Any, Any], num_bytes: int) -> np.ndarray[Any, Any]:
        """Return for each address whether an aligned access of `num_bytes` there stays on elements."""
        inside = (addresses >= self.start) & (addresses <= self.end - num_bytes)
        inside &= addresses % num_bytes == 0
        if self.dims and inside.any():
            for offset in (0, num_bytes - 1):
                inside &= self._on_element(addresses + offset - self.start)
        return inside

    def _on_element(self, offsets: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        rest = offsets
        for stride, extent in self.dims:
            rest = rest - np.clip(rest // stride, 0, extent - 1) * stride
        return (rest >= 0) & (rest < self.element_bytes)


def nearest(views: Sequence[TensorView], address: int, num_bytes: int) -> str:
    """Say where an address lies with respect to the tensor next to it."""
    if not views:
        return "where the launch has no tensor argument"

    def distance(view: TensorView) -> int:
        return max(view.start - address, address + num_bytes - view.end, 0)

    view = min(views, key=distance)
    if address < view.start:
        where = f"{view.start - address} bytes before"
    elif address + num_bytes > view.end:
        where = f"{address - view.end} bytes past the end of"
    elif address % num_bytes:
        where = f"misaligned at byte {address - view.start} of"
    else:
        where = f"at byte {address - view.start}, which is no element, of"
    return f"{where} {view.description}"
