"""What is written must lie apart: from itself, and from everything else of the call.

Programs of a launch run in any order, so a result that shares memory with an operand is chance.
"""

from collections.abc import Mapping
from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from .tensors import fail

# Steps that numpy may take to decide whether two strided views meet. What is undecided then counts
# as meeting; interleaved layouts need fewer than a hundred.
MAX_WORK = 10_000


def check_apart(
    written: Mapping[str, torch.Tensor | None], read: Mapping[str, torch.Tensor | None]
) -> None:
    """Raise KernelInputError if a written tensor holds an element twice, or shares one.

    Tensors by name; None is not there. K and V in one allocation are apart if their elements are.
    """
    outputs = {name: tensor for name, tensor in written.items() if tensor is not None}
    inputs = {name: tensor for name, tensor in read.items() if tensor is not None}
    for name, tensor in outputs.items():
        _check_nested(name, tensor)
    pairs = [*combinations(outputs.items(), 2), *product(outputs.items(), inputs.items())]
    for (name, tensor), (other_name, other) in pairs:
        if _share_memory(tensor, other):
            fail(f"{name} shares memory with {other_name}; what is written must lie apart")


def _check_nested(name: str, tensor: torch.Tensor) -> None:
    """Each stride must pass over all that the smaller ones reach: no two elements are one then."""
    dims = zip(tensor.stride(), tensor.shape, strict=True)
    reach = 1
    for stride, extent in sorted((stride, extent) for stride, extent in dims if extent > 1):
        if stride < reach:
            fail(
                f"{name} has strides {list(tensor.stride())} for shape {list(tensor.shape)}; "
                "it is written, so its elements must not overlap"
            )
        reach += stride * (extent - 1)


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.numel() == 0 or other.numel() == 0 or "meta" in (one.device.type, other.device.type):
        return False
    if one.data_ptr() >= _end(other) or other.data_ptr() >= _end(one):
        return False
    return np.may_share_memory(_as_array(one), _as_array(other), max_work=MAX_WORK)


def _end(tensor: torch.Tensor) -> int:
    """The address behind the last element."""
    last = sum(
        stride * (extent - 1) for stride, extent in zip(tensor.stride(), tensor.shape, strict=True)
    )
    return tensor.data_ptr() + (last + 1) * tensor.element_size()


def _as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Addresses as numpy sees them, of a device's memory, too: nothing is read."""
    size = tensor.element_size()
    interface = {
        "shape": tuple(tensor.shape),
        "typestr": f"|V{size}",
        "data": (tensor.data_ptr(), True),
        "strides": tuple(stride * size for stride in tensor.stride()),
        "version": 3,
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface))
