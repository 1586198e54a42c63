"""One kernel launch as a value: built and checked apart from being run."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton

from ..arguments.tensors import check_memory
from ..errors import KernelInputError


@dataclass(frozen=True)
class Launch:
    """A `@triton.jit` kernel, its grid, its arguments by name, and num_warps and num_stages.

    Multiplies and adds may be fused; said outright, because Triton's default is about to change.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    options: dict[str, int]

    def run(self) -> None:
        """Launch on the current stream of the tensors' device; an empty grid does nothing.

        Raises KernelInputError for tensors without memory, for bf16 in an interpreter that would
        compute on its bits, and for memory that compiled kernels cannot reach.
        """
        tensors = {
            name.removesuffix("_ptr"): value
            for name, value in self.arguments.items()
            if isinstance(value, torch.Tensor)
        }
        for name, tensor in tensors.items():
            check_memory(name, tensor)
        if is_interpreted():
            _refuse_raw_bf16(tensors)
        if not all(self.grid):
            return
        name, tensor = next(iter(tensors.items()))
        try:
            # Triton launches on the current device, wherever the tensors are.
            with torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext():
                self.kernel[self.grid](**self.arguments, **self.options, enable_fp_fusion=True)
        except (RuntimeError, ValueError) as error:
            if is_interpreted() or tensor.is_cuda:
                raise
            raise KernelInputError(
                f"{name} is on {tensor.device}, and compiled kernels run on cuda: set TRITON_INTERPRET=1 "
                "before triton is imported, or use kvtwin.gpu.torch_ops"
            ) from error


def _refuse_raw_bf16(tensors: dict[str, torch.Tensor]) -> None:
    from ..tools.low_precision import is_low_precision

    for name, tensor in tensors.items():
        if tensor.dtype == torch.bfloat16 and not is_low_precision():
            raise KernelInputError(
                f"{name} is torch.bfloat16, which triton's interpreter gets wrong: "
                "call inside `with kvtwin.gpu.tools.low_precision.low_precision():`, or use float16"
            )


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter: TRITON_INTERPRET was set before the import."""
    return bool(triton.knobs.runtime.interpret)
