"""Compile kernels for a GPU that is not there, with the argument specialisation of a real launch.

Triton asks its driver only for the target, a device number and a stream before it compiles, so a
driver that answers those is enough: types come from the tensors, divisibility by 16 from pointers
and integers, and integers equal to 1 become constants, exactly as in a launch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from .interpreter import replaced

WARP_THREADS = 32


@dataclass(frozen=True)
class CompiledLaunch:
    """One launch that was compiled and not run."""

    kernel_name: str
    grid: tuple[int, ...]
    compiled: Any  # triton.compiler.CompiledKernel, not loaded


class FakeCuda:
    """The driver of a GPU of compute capability `arch` (80, 90, ...) that can only be compiled for."""

    def __init__(self, arch: int) -> None:
        self._target = GPUTarget("cuda", arch, WARP_THREADS)

    def get_current_target(self) -> GPUTarget:
        """Return what to compile for."""
        return self._target

    def get_current_device(self) -> int:
        """Return a device number of its own for each arch: triton keeps compiled kernels by device."""
        return int(self._target.arch)

    def get_current_stream(self, device: int = 0) -> int:
        """Return the null stream; nothing is ever launched on it."""
        return 0


@contextmanager
def compile_only(arch: int) -> Iterator[list[CompiledLaunch]]:
    """Compile each kernel launched inside for `arch` instead of running it; yield the list of launches.

    Launch through the ordinary wrappers with CPU tensors: outputs stay as they were. Raises
    RuntimeError if kernels are interpreted in this process.
    """
    if not isinstance(triton.language.standard.zeros, JITFunction):
        raise RuntimeError(
            "kernels are interpreted in this process: compile without TRITON_INTERPRET in the environment"
        )
    run = JITFunction.run
    launches: list[CompiledLaunch] = []

    def compile_instead(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled = run(self, *args, grid=grid, warmup=True, **kwargs)
        if callable(grid):
            grid = grid(self.signature.bind(*args, **kwargs).arguments)
        launches.append(CompiledLaunch(self.__name__, tuple(grid), compiled))
        return compiled

    config = triton.runtime.driver
    with replaced(config, _active=FakeCuda(arch)), replaced(JITFunction, run=compile_instead):
        yield launches
