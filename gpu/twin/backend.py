"""What a twin runs on: the torch operations, or the kernels, compiled or interpreted."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..check.backends import Backend, backends
from ..devices import choose_device
from ..errors import UnavailableError

BACKENDS = ("auto", "torch", "triton")


@contextmanager
def open_backend(device: str, name: str) -> Iterator[Backend]:
    """The backend of that name, ready inside. `auto`: triton on cuda, torch on cpu.

    triton on cpu is its interpreter: TRITON_INTERPRET=1 must have been set before it was imported.
    Raises UnavailableError.
    """
    if name not in BACKENDS:
        raise UnavailableError(f"backend {name}: choose {', '.join(BACKENDS)}")
    device = choose_device(device)
    if name == "auto":
        name = "triton" if device == "cuda" else "torch"
    if name == "triton":
        with backends(device) as found:
            if found[0].name == "torch":
                raise UnavailableError("backend triton: triton is not installed; choose torch")
            yield found[0]
        return
    if device == "cuda":
        raise UnavailableError("backend torch: its operations are for CPUs; choose triton on cuda")
    from .. import torch_ops

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small operations: more threads are slower
    try:
        yield Backend("torch", torch_ops, device)
    finally:
        torch.set_num_threads(num_threads)
