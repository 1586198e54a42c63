"""The tolerance is the number it is said to be, and an error just beyond it fails."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvtwin.gpu import torch_ops
from kvtwin.gpu.check import Backend, Case, run_case
from kvtwin.gpu.check.attention import attention_with
from kvtwin.gpu.check.inputs import make_inputs
from kvtwin.gpu.check.tolerance import allowed_error, expected

# Half a unit in the last place of 1.0, with 10, 7 and 23 bits behind the point.
HALF_UNITS = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}


@pytest.mark.parametrize("dtype", HALF_UNITS, ids=str)
def test_by_hand(dtype: torch.dtype) -> None:
    """Twice torch's error, half a unit of the largest output, and four units of fp32."""
    assert allowed_error(0.0, 1.0, dtype) == HALF_UNITS[dtype] + 4 * 2.0**-23
    assert allowed_error(0.25, 0.0, dtype) == 0.5
    assert allowed_error(0.25, 3.0, dtype) == 0.5 + 3 * (HALF_UNITS[dtype] + 4 * 2.0**-23)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("kernel", ["paged_decode", "paged_prefill", "contiguous_decode"])
def test_an_error_just_beyond_it_fails(kernel: str, dtype: str) -> None:
    """An output that is given out and is off by a little less, and a little more, in one place."""
    case = Case(kernel, "float32", context_lens=(9, 40), query_lens=(5, 1))
    if kernel != "paged_prefill":
        case = replace(case, query_lens=())
    case = replace(case, dtype=dtype)
    inputs = make_inputs(case)
    reference, tolerance = expected(case, inputs)
    right = attention_with(case, torch_ops, inputs, torch.empty_like(inputs.query))
    assert (right.double() - reference).abs().max() <= tolerance

    def off_by(amount: float) -> Backend:
        def operation(**arguments: Any) -> torch.Tensor:
            # In float64, so that nothing is rounded on the way to the comparison.
            given = arguments["out"]
            exact = reference.clone()
            exact[-1, 0, 3] += amount
            given.data = exact
            return given

        ops: Any = SimpleNamespace(**vars(torch_ops))
        setattr(ops, kernel, operation)
        ops.__name__ = "wrong torch_ops"
        return Backend("torch", ops, "cpu")

    assert run_case(case, off_by(0.0)).error == 0.0
    assert run_case(case, off_by(0.999 * tolerance)).passed
    assert not run_case(case, off_by(1.001 * tolerance)).passed
    assert not run_case(case, off_by(float("nan"))).passed
