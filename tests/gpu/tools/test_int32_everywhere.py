"""Every interpreted case of the matrix runs with checks of 32-bit integers."""

from typing import Any

import pytest
import torch
from tiny_kernels import product_kernel

from kvtwin.gpu.tools.overflow import IntegerOverflow


def test_the_interpreter_of_the_checks_refuses_a_wrapped_product(on: dict[str, Any]) -> None:
    assert "triton-interpret" in on
    with pytest.raises(IntegerOverflow, match="overflow detected for operation mul"):
        product_kernel[(1,)](torch.zeros(1, dtype=torch.int64), 70_000, 40_000, WIDE=False)
