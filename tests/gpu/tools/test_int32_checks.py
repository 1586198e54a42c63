"""Wrapped 32-bit arithmetic and casts that lose bits are caught, and nothing else is."""

import pytest
import torch
from tiny_kernels import copy_kernel, narrow_kernel, product_kernel

from kvtwin.gpu.tools.overflow import IntegerOverflow, int32_checks

A, B = 70_000, 40_000  # 2.8e9, above 2^31 and below 2^32


def test_stock_interpreter_wraps_silently() -> None:
    dst = torch.zeros(1, dtype=torch.int64)
    product_kernel[(1,)](dst, A, B, WIDE=False)
    assert dst.item() == A * B - 2**32


def test_planted_overflow_is_caught() -> None:
    dst = torch.zeros(1, dtype=torch.int64)
    with (
        pytest.raises(IntegerOverflow, match=r"int32 overflow .* mul in program \(0, 0, 0\)"),
        int32_checks(),
    ):
        product_kernel[(1,)](dst, A, B, WIDE=False)


def test_the_same_product_in_64_bits_passes() -> None:
    dst = torch.zeros(1, dtype=torch.int64)
    with int32_checks():
        product_kernel[(1,)](dst, A, B, WIDE=True)
    assert dst.item() == 2_800_000_000


def test_largest_int32_passes() -> None:
    dst = torch.zeros(1, dtype=torch.int64)
    with int32_checks():
        product_kernel[(1,)](dst, (2**31 - 1) // 7, 7, WIDE=False)
    assert dst.item() == 2**31 - 2


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_a_cast_that_loses_bits_is_caught(value: int) -> None:
    dst = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(IntegerOverflow, match=f"{value} does not fit int32"), int32_checks():
        narrow_kernel[(1,)](dst, torch.tensor([value]))


@pytest.mark.parametrize("value", [-1, 0, 2**31 - 1, -(2**31)])
def test_a_cast_that_keeps_the_value_passes(value: int) -> None:
    dst = torch.zeros(1, dtype=torch.int32)
    with int32_checks():
        narrow_kernel[(1,)](dst, torch.tensor([value]))
    assert dst.item() == value


def test_other_faults_of_a_kernel_keep_their_own_error() -> None:
    from triton.runtime.interpreter import InterpreterError

    with pytest.raises(InterpreterError), int32_checks():
        copy_kernel[(1,)](torch.zeros(8), torch.zeros(8), 8, BLOCK=7, MASKED=True)


def test_checks_end_with_the_block() -> None:
    with int32_checks():
        pass
    dst = torch.zeros(1, dtype=torch.int64)
    product_kernel[(1,)](dst, A, B, WIDE=False)
    assert dst.item() < 0
