"""Which device there is to run on."""

import torch

from .errors import UnavailableError
from .processor import cpu_model

DEVICES = ("cuda", "cpu")


def choose_device(wanted: str | None = None) -> str:
    """`wanted`, or "cuda" where there is one, else "cpu". Raises UnavailableError."""
    has_cuda = torch.cuda.is_available()
    if wanted is None:
        return "cuda" if has_cuda else "cpu"
    if wanted not in DEVICES:
        raise UnavailableError(f"device {wanted}: choose {' or '.join(DEVICES)}")
    if wanted == "cuda" and not has_cuda:
        raise UnavailableError("device cuda: torch finds no CUDA device; choose cpu")
    return wanted


def device_name(device: str) -> str:
    """What the GPU or the processor calls itself."""
    return str(torch.cuda.get_device_name()) if device == "cuda" else cpu_model()
