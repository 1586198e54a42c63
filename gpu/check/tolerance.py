"""How far from float64 a kernel may be: fixed before the kernel has run."""

import numpy as np
import torch

from .case import Case
from .inputs import Inputs
from .reference import Array, attention
from .same_precision import torch_attention

# The kernel may err this many times as much as plain torch in the same precision does (as the
# tests of FlashAttention have it), plus one rounding of the largest output, and as many of fp32: a
# GPU's exp2 is good to 2 units in the last place (PTX ex2.approx), and so is its division.
MULTIPLE = 2.0
FP32_ROUNDINGS = 4.0


def expected(case: Case, inputs: Inputs) -> tuple[torch.Tensor, float]:
    """float64 output for all rows of the query, padding included; and the tolerance."""
    references, torch_errors = [], [0.0]
    sinks = None if inputs.sinks is None else inputs.sinks.cpu()
    starts = inputs.query_starts.tolist()
    query = inputs.query.cpu()
    for seq, (key, value) in enumerate(zip(inputs.keys, inputs.values, strict=True)):
        rows = query[starts[seq] : starts[seq + 1]]
        options = {"scale": case.scale, "window": case.window, "soft_cap": case.soft_cap}
        reference = attention(
            _float64(rows),
            _float64(key),
            _float64(value),
            **options,
            sinks=None if sinks is None else _float64(sinks),
        )
        run = torch_attention(rows, key, value, **options, sinks=sinks)
        references.append(torch.from_numpy(reference))
        if run.numel():
            torch_errors.append(float(np.abs(_float64(run) - reference).max()))
    padding = torch.zeros(query[starts[-1] :].shape, dtype=torch.float64)
    reference = torch.cat([*references, padding])
    largest = float(reference.abs().max()) if reference.numel() else 0.0
    return reference, allowed_error(max(torch_errors), largest, case.torch_dtype)


def allowed_error(torch_error: float, largest: float, dtype: torch.dtype) -> float:
    """The tolerance for outputs of `dtype` up to `largest`, where plain torch errs `torch_error`."""
    rounding = torch.finfo(dtype).eps / 2 + FP32_ROUNDINGS * torch.finfo(torch.float32).eps
    return MULTIPLE * torch_error + rounding * largest


def _float64(tensor: torch.Tensor) -> Array:
    array: Array = tensor.double().numpy()
    return array
