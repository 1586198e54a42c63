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
from kvtwin.gpu.check.tolerance import allowed_error, expected, row_tolerances, worst_row

# Half a unit in the last place of 1.0, with 10, 7 and 23 bits behind the point.
HALF_UNITS = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}


@pytest.mark.parametrize("dtype", HALF_UNITS, ids=str)
def test_by_hand(dtype: torch.dtype) -> None:
    """Twice torch's error, half a unit of the largest output, and four units of fp32."""
    assert allowed_error(0.0, 1.0, dtype) == HALF_UNITS[dtype] + 4 * 2.0**-23
    assert allowed_error(0.25, 0.0, dtype) == 0.5
    assert allowed_error(0.25, 3.0, dtype) == 0.5 + 3 * (HALF_UNITS[dtype] + 4 * 2.0**-23)


@pytest.mark.parametrize("error", [float("nan"), float("inf")])
def test_plain_torch_that_overflows_allows_nothing(error: float) -> None:
    with pytest.raises(AssertionError, match="anything would pass"):
        allowed_error(error, 1.0, torch.float16)


def test_each_row_has_its_own_tolerance() -> None:
    """One key, 40 keys, none, and padding: what is exactly 0 must be."""
    case = Case("paged_prefill", context_lens=(1, 40, 0), query_lens=(1, 1, 0), num_padding=2)
    _, tolerances = expected(case, make_inputs(case))
    one, forty, *padding = tolerances.tolist()
    assert one > forty > 0.0
    assert padding == [0.0, 0.0]
    decode = replace(case, kernel="paged_decode", query_lens=(), num_padding=0)
    assert expected(decode, make_inputs(decode))[1][2] == 0.0


@pytest.mark.parametrize("num_outputs", [63, 64])
def test_rows_of_few_outputs_share_a_tolerance(num_outputs: int) -> None:
    """The largest of few errors is chance; rows that are nothing but 0 share none."""
    reference = torch.zeros(3, 1, num_outputs, dtype=torch.float64)
    reference[:2, 0, 0] = torch.tensor([4.0, 1.0])
    run = reference.clone()
    run[:2, 0, -1] += torch.tensor([0.25, 0.5])
    own = [allowed_error(0.25, 4.0, torch.float16), allowed_error(0.5, 1.0, torch.float16), 0.0]
    shared = [allowed_error(0.5, 4.0, torch.float16)] * 2 + [0.0]
    found = row_tolerances(run, reference, torch.float16).tolist()
    assert found == (shared if num_outputs == 63 else own)
    assert row_tolerances(run[:0], reference[:0], torch.float16).tolist() == []


@pytest.mark.parametrize(
    ("errors", "tolerances", "worst"),
    [
        ([0.5, 0.3], [1.0, 0.4], (0.3, 0.4)),
        ([0.0, 1e-9], [0.0, 1.0], (1e-9, 1.0)),
        ([1e-30, 2.0], [0.0, 1.0], (1e-30, 0.0)),
        ([0.0, 0.0], [0.0, 1.0], (0.0, 0.0)),
        ([], [], (0.0, 0.0)),
    ],
)
def test_the_worst_row_is_told(
    errors: list[float], tolerances: list[float], worst: tuple[float, float]
) -> None:
    double = torch.float64
    rows = torch.tensor(errors, dtype=double), torch.tensor(tolerances, dtype=double)
    assert worst_row(*rows) == worst


def test_a_nan_is_the_worst_row() -> None:
    errors = torch.tensor([3.0, float("nan"), 1.0])
    error, _ = worst_row(errors, torch.tensor([0.0, 1.0, 1.0]))
    assert error != error


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("kernel", ["paged_decode", "paged_prefill", "contiguous_decode"])
def test_an_error_just_beyond_it_fails(kernel: str, dtype: str) -> None:
    """An output that is given out and is off by a little less, and a little more, in one place."""
    case = Case(kernel, "float32", context_lens=(9, 40), query_lens=(5, 1))
    if kernel != "paged_prefill":
        case = replace(case, query_lens=())
    case = replace(case, dtype=dtype)
    inputs = make_inputs(case)
    reference, tolerances = expected(case, inputs)
    tolerance = float(tolerances[-1])
    right = attention_with(case, torch_ops, inputs, torch.empty_like(inputs.query))
    assert ((right.double() - reference).abs().amax((1, 2)) <= tolerances).all()

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
