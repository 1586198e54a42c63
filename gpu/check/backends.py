"""What the operations can run on here."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType

import torch

from ..errors import INSTALL, UnavailableError

INTERPRETED = "triton-interpret"


@dataclass(frozen=True)
class Backend:
    """`name` says what ran in every line of a report."""

    name: str
    ops: ModuleType
    device: str


@contextmanager
def backends(device: str) -> Iterator[list[Backend]]:
    """The backends of "cuda" or "cpu", ready to run inside.

    On a CPU the kernels run in Triton's interpreter, with its 16-bit arithmetic made right and no
    32-bit integer allowed to wrap, and the torch operations beside them; only those where triton is
    not installed. TRITON_INTERPRET=1 must have been set before triton was imported. Raises
    UnavailableError.
    """
    from .. import torch_ops

    on_torch = Backend("torch", torch_ops, device)
    try:
        from .. import kernels
    except ModuleNotFoundError as error:
        if error.name != "triton" or device == "cuda":
            raise UnavailableError(
                f"the kernels need {error.name}, which is not installed: {INSTALL}"
            ) from error
        yield [on_torch]
        return
    if device == "cuda":
        if kernels.is_interpreted():
            raise UnavailableError("TRITON_INTERPRET is set: unset it to compile for the GPU")
        yield [Backend("cuda", kernels, device)]
        return
    from ..tools.fast_interpreter import fast_interpreter
    from ..tools.interpreter import InterpreterMismatch
    from ..tools.low_precision import low_precision
    from ..tools.overflow import int32_checks

    with ExitStack() as stack:
        # Small operations: more threads are slower.
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        try:
            stack.enter_context(fast_interpreter())
            stack.enter_context(low_precision())
            stack.enter_context(int32_checks())
        except InterpreterMismatch as error:
            raise UnavailableError(str(error)) from error
        yield [Backend(INTERPRETED, kernels, device), on_torch]
