"""One kernel launch as a value: built and checked apart from being run."""

from dataclasses import dataclass
from typing import Any

import torch
import triton

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

        Raises KernelInputError for bf16 in an interpreter that would compute on its bits.
        """
        if is_interpreted():
            self._refuse_raw_bf16()
        if all(self.grid):
            self.kernel[self.grid](**self.arguments, **self.options, enable_fp_fusion=True)

    def _refuse_raw_bf16(self) -> None:
        from ..tools.low_precision import is_low_precision

        for name, value in self.arguments.items():
            is_bf16 = isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16
            if is_bf16 and not is_low_precision():
                raise KernelInputError(
                    f"{name.removesuffix('_ptr')} is torch.bfloat16, which triton's interpreter gets wrong: "
                    "call inside `with kvtwin.gpu.tools.low_precision.low_precision():`, or use float16"
                )


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter: TRITON_INTERPRET was set before the import."""
    return bool(triton.knobs.runtime.interpret)
