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
# The largest error of fewer outputs than these is chance.
MIN_ROW_OUTPUTS = 64


def expected(case: Case, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 output for all rows of the query, padding included; and each row's tolerance.

    A row is one token. Outputs are smaller the more keys they are the mean of, so that one tolerance
    for all rows, which few keys make, would let a lost key of a long context pass. Rows of fewer
    than MIN_ROW_OUTPUTS numbers have only that.
    """
    references, runs = [], []
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
        runs.append(run.double())
    padding = torch.zeros(query[starts[-1] :].shape, dtype=torch.float64)
    reference, run = (torch.cat([*rows, padding]) for rows in (references, runs))
    return reference, row_tolerances(run, reference, case.torch_dtype)


def row_tolerances(run: torch.Tensor, reference: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tolerance of each row of [rows, heads, dim], of what plain torch made of it, in float64.

    0 where all of a row is 0 in both: nothing is rounded there.
    """
    errors, largest = ((run - reference).abs().amax((1, 2)), reference.abs().amax((1, 2)))
    is_number = (errors > 0.0) | (largest > 0.0)
    if len(errors) and reference[0].numel() < MIN_ROW_OUTPUTS:
        errors, largest = (part.max() * is_number for part in (errors, largest))
    rows = zip(errors.tolist(), largest.tolist(), strict=True)
    return torch.tensor([allowed_error(*row, dtype) for row in rows], dtype=torch.float64)


def worst_row(errors: torch.Tensor, tolerances: torch.Tensor) -> tuple[float, float]:
    """Error and tolerance of the row that comes closest to its own, or is furthest beyond it.

    `errors`, `tolerances`: [rows]. A NaN is worse than anything.
    """
    if errors.numel() == 0:
        return 0.0, 0.0
    row = torch.where(errors == 0.0, 0.0, errors / tolerances).argmax()
    return float(errors[row]), float(tolerances[row])


def allowed_error(torch_error: float, largest: float, dtype: torch.dtype) -> float:
    """The tolerance for outputs of `dtype` up to `largest`, where plain torch errs `torch_error`."""
    assert np.isfinite((torch_error, largest)).all(), "anything would pass"
    rounding = torch.finfo(dtype).eps / 2 + FP32_ROUNDINGS * torch.finfo(torch.float32).eps
    return MULTIPLE * torch_error + rounding * largest


def _float64(tensor: torch.Tensor) -> Array:
    array: Array = tensor.double().numpy()
    return array
