"""One kernel launch as a value: built and checked apart from being run."""

from dataclasses import dataclass
from typing import Any

import triton


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
        """Launch on the current stream of the tensors' device; an empty grid does nothing."""
        if all(self.grid):
            self.kernel[self.grid](**self.arguments, **self.options, enable_fp_fusion=True)


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter: TRITON_INTERPRET was set before the import."""
    return bool(triton.knobs.runtime.interpret)
