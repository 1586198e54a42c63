"""bf16 and fp8 in the interpreter agree with torch bit for bit, and tf32 dots round as tf32."""

import numpy as np
import pytest
import torch
from tiny_kernels import arithmetic_kernel, cast_kernel, dot_kernel

from kvtwin.gpu.tools.low_precision import FP8_MAX, low_precision, to_tf32

NARROW = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
BLOCK = 4096


def numbers(num: int = BLOCK) -> torch.Tensor:
    """Normal numbers over 12 powers of two."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(num, generator=generator) * 2.0 ** torch.randint(
        -8, 4, (num,), generator=generator
    )


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.uint8).tolist()


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_casts_round_as_torch_does(dtype: torch.dtype) -> None:
    src, dst = numbers(), torch.zeros(BLOCK, dtype=dtype)
    cast_kernel[(1,)](src, dst, BLOCK=BLOCK)
    assert bits(dst) != bits(src.to(dtype))  # the stock interpreter does not
    with low_precision():
        cast_kernel[(1,)](src, dst, BLOCK=BLOCK)
    assert bits(dst) == bits(src.to(dtype))


@pytest.mark.parametrize("dtype", FP8_MAX, ids=str)
def test_casts_to_fp8_saturate(dtype: torch.dtype) -> None:
    limit = FP8_MAX[dtype]
    assert torch.finfo(dtype).max == limit
    src = torch.tensor([limit, limit * 1.01, limit * 2, torch.inf, -torch.inf, torch.nan, 0, -0.0])
    dst = torch.zeros(8, dtype=dtype)
    with low_precision():
        cast_kernel[(1,)](src, dst, BLOCK=8)
    assert dst.float()[:5].tolist() == [limit, limit, limit, limit, -limit]
    assert dst.float()[5].isnan()


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_every_code_widens_as_torch_does(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8) if dtype in FP8_MAX else torch.arange(2**16)
    src = codes.to(torch.uint8 if dtype in FP8_MAX else torch.uint16).view(dtype)
    dst = torch.zeros(src.numel())
    with low_precision():
        cast_kernel[(1,)](src, dst, BLOCK=src.numel())
    np.testing.assert_array_equal(dst.numpy(), src.float().numpy())


def test_bf16_arithmetic_and_comparisons_agree_with_torch() -> None:
    a, b = numbers().bfloat16(), numbers().flip(0).bfloat16()
    total, product = torch.zeros_like(a), torch.zeros_like(a)
    larger = torch.zeros(BLOCK, dtype=torch.int8)
    with low_precision():
        arithmetic_kernel[(1,)](a, b, total, product, larger, BLOCK=BLOCK)
    assert bits(total) == bits(a + b)
    assert bits(product) == bits(a * b)
    assert torch.equal(larger.bool(), a > b)


def dot(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    result = torch.zeros(32, 32)
    dot_kernel[(1,)](a, b, result, N=32, PRECISION=precision)
    return result


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_dots_of_narrow_operands_multiply_their_values(dtype: torch.dtype) -> None:
    a, b = (
        numbers(1024).view(32, 32).to(dtype),
        numbers(1024).view(32, 32).t().contiguous().to(dtype),
    )
    with low_precision():
        result = dot(a, b, "ieee")
    exact = a.double() @ b.double()
    # 32 products summed in fp32: 32 roundings of at most 2^-24 of the sum of magnitudes.
    bound = 32 * 2.0**-24 * (a.double().abs() @ b.double().abs())
    assert ((result - exact).abs() <= bound).all()


def test_tf32_dots_lose_13_bits_and_ieee_dots_do_not() -> None:
    a, b = numbers(1024).view(32, 32), numbers(1024).view(32, 32).t().contiguous()
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    with low_precision():
        error = {precision: (dot(a, b, precision) - exact).abs() for precision in ("ieee", "tf32")}
    assert (error["ieee"] <= 32 * 2.0**-24 * magnitude).all()
    # Two operands rounded to 11 significant bits each.
    assert (error["tf32"] <= 2.1 * 2.0**-11 * magnitude).all()
    assert (error["tf32"] / magnitude).max() > 2.0**-15


def test_tf32_has_ten_bits_of_mantissa() -> None:
    ulp = 2.0**-10
    values = np.array([1 + ulp, 1 + ulp / 2, 1 + ulp / 2.1, -1 - ulp / 2, np.inf, 0], np.float32)
    assert to_tf32(values).tolist() == [1 + ulp, 1 + ulp, 1.0, -1 - ulp, np.inf, 0]
    assert np.isnan(to_tf32(np.array([np.nan], np.float32)))


def test_fp16_and_fp32_are_left_alone() -> None:
    a, b = numbers(64).half(), numbers(64).flip(0).half()
    total, product = torch.zeros_like(a), torch.zeros_like(a)
    with low_precision():
        arithmetic_kernel[(1,)](a, b, total, product, torch.zeros(64, dtype=torch.int8), BLOCK=64)
    assert bits(total) == bits(a + b)
    assert bits(product) == bits(a * b)
