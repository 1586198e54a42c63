"""Lists, numbers and strange tensors in the place of an argument are refused in one line."""

from typing import Any

import numpy as np
import pytest
import torch
from log_inputs import NAN
from test_overlaps import OPERATIONS, Arguments

from kvtwin.gpu.arguments import Scores, Tuning
from kvtwin.gpu.errors import KernelInputError


def refused(ops: Any, operation: str, arguments: Arguments, message: str) -> None:
    """The call raises one line, and changes nothing."""
    tensors = [v for v in arguments.values() if isinstance(v, torch.Tensor) and not v.is_sparse]
    before = [tensor.detach().clone() for tensor in tensors]
    with pytest.raises(KernelInputError, match=message) as raised:
        getattr(ops, operation)(**arguments)
    assert "\n" not in str(raised.value)
    for tensor, kept in zip(tensors, before, strict=True):
        assert torch.equal(tensor.isnan(), kept.isnan())
        assert torch.equal(tensor.nan_to_num(), kept.nan_to_num())


def tensor_names(operation: str, backend: Any) -> list[str]:
    make, _ = OPERATIONS[operation]
    ignored = ("workspace",) if backend.__name__.endswith("torch_ops") else ()
    return [n for n, v in make().items() if isinstance(v, torch.Tensor) and n not in ignored]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_no_dense_tensor(ops: Any, operation: str) -> None:
    for name in tensor_names(operation, ops):
        for change, message in (
            (lambda tensor: tensor.tolist(), f"{name} is list; it must be a torch.Tensor"),
            (lambda tensor: tensor.numpy(), f"{name} is ndarray; it must be a torch.Tensor"),
            (lambda tensor: 1.5, f"{name} is float; it must be a torch.Tensor"),
            (lambda tensor: tensor.to_sparse(), f"{name} is torch.sparse_coo; it must be torch.s"),
        ):
            arguments = OPERATIONS[operation][0]()
            arguments[name] = change(arguments[name])
            refused(ops, operation, arguments, message)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_tensor_has_a_type_and_a_number_of_dimensions(ops: Any, operation: str) -> None:
    """A dimension more or less, 64-bit floats, booleans and complex numbers."""
    for name in tensor_names(operation, ops):
        for change in (
            lambda tensor: tensor[0],
            lambda tensor: tensor[None],
            lambda tensor: tensor.double(),
            lambda tensor: tensor.bool(),
            lambda tensor: tensor.cfloat(),
        ):
            arguments = OPERATIONS[operation][0]()
            arguments[name] = change(arguments[name])
            refused(ops, operation, arguments, name)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_tensors_that_want_a_gradient(ops: Any, operation: str) -> None:
    """Refused where torch records for one, taken under no_grad: model weights, such as sinks, are."""
    make, _ = OPERATIONS[operation]
    names = [n for n in tensor_names(operation, ops) if make()[n].is_floating_point()]
    for name in names:
        arguments = make()
        arguments[name].requires_grad_()
        refused(ops, operation, arguments, f"{name} requires grad, and there is no backward")
    arguments = make()
    for name in names:
        arguments[name].requires_grad_()
    with torch.no_grad():
        getattr(ops, operation)(**arguments)


@pytest.mark.parametrize("operation", ["paged_decode", "contiguous_decode", "paged_prefill"])
def test_numbers_of_another_kind(ops: Any, operation: str) -> None:
    for name, value, message in (
        ("scale", "1", "scale is str; it must be a number"),
        ("scale", None, "scale is NoneType; it must be a number"),
        ("scale", torch.tensor(0.5), "scale is Tensor; it must be a number"),
        ("scale", 1e300, "scale is 1e\\+300; it must be positive and finite"),
        ("scale", 1e-60, "scale is 1e-60; it must be positive and finite"),
        ("scale", float("inf"), "scale is inf; it must be positive and finite"),
        ("window", 2.0, "window is float; it must be an integer"),
        ("window", None, "window is NoneType; it must be an integer"),
        ("soft_cap", None, "soft_cap is NoneType; it must be a number"),
        ("soft_cap", NAN, "soft_cap is nan; it must be 0"),
        ("soft_cap", 1e39, "soft_cap is 1e\\+39; it must be 0"),
    ):
        refused(ops, operation, OPERATIONS[operation][0]() | {name: value}, message)


@pytest.mark.parametrize("operation", ["paged_decode", "contiguous_decode", "paged_prefill"])
def test_plans_of_another_kind(on: dict[str, Any], operation: str) -> None:
    """The kernels use them; the torch operations take and ignore them."""
    ops = on["triton-interpret"].ops
    refused(
        ops,
        operation,
        OPERATIONS[operation][0]() | {"tuning": (16, 4, 2)},
        "tuning is tuple; it must be a Tuning",
    )
    if operation != "paged_prefill":
        arguments = OPERATIONS[operation][0]() | {"split": 2}
        refused(ops, operation, arguments, "split is int; it must be a SplitPlan")


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((8, 4, 2), "tile_tokens must be a power of two, 16 or more"),
        ((48, 4, 2), "tile_tokens must be a power of two, 16 or more"),
        ((16.0, 4, 2), "tile_tokens must be a power of two, 16 or more"),
        ((16, 3, 2), "num_warps must be a power of two, 1 or more"),
        ((16, 4, 0), "num_stages must be an integer of 1 or more"),
        ((16, 4, 2, 24), "query_rows must be a power of two, 0 or more"),
    ],
)
def test_a_tuning_that_does_not_compile(numbers: tuple[int, ...], message: str) -> None:
    with pytest.raises(KernelInputError, match=message):
        Tuning(*numbers)


def test_numbers_of_numpy_are_numbers(ops: Any) -> None:
    arguments = OPERATIONS["paged_decode"][0]()
    wanted = ops.paged_decode(**arguments | {"window": 5, "soft_cap": 2.0}).clone()
    numbers = {"scale": np.float32(0.25), "window": np.int64(5), "soft_cap": np.float64(2.0)}
    assert torch.equal(ops.paged_decode(**arguments | numbers), wanted)


@pytest.mark.parametrize("operation", ["paged_decode", "contiguous_decode", "paged_prefill"])
def test_a_window_beyond_every_context_is_none(guarded: Any, operation: str) -> None:
    """Of more than 32 bits, too: positions less the window must not wrap."""
    run, make = getattr(guarded, operation), OPERATIONS[operation][0]
    wanted = run(**make())
    for window in (2**31 - 1, 2**31, 2**40):
        assert Scores(1.0, window).window == 2**31 - 1
        assert torch.equal(run(**make() | {"window": window}), wanted)
