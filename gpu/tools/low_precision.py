"""bf16, fp8 and tf32 arithmetic in interpreted kernels that rounds as a GPU does.

The stock interpreter keeps bf16 and fp8 as raw bits and computes on the bits: products of bf16 are
meaningless, conversions truncate or lose a carry, and tf32 dots keep all 24 bits of fp32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from .interpreter import interpreter, replaced

# Largest finite value: a conversion from a wider float saturates there (PTX cvt.rn.satfinite).
FP8_MAX = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def to_tf32(values: Any) -> Any:
    """Round fp32 to 10 bits of mantissa, ties away from zero as PTX cvt.rna.tf32; inf and NaN stay."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(values), rounded.view(np.float32), values)


def is_low_precision() -> bool:
    """Whether this runs inside `low_precision`, whatever other tools were entered after it."""
    from triton.runtime.interpreter import InterpreterBuilder

    method = InterpreterBuilder.create_dot
    while method is not None and getattr(method, "__module__", "") != __name__:
        method = getattr(method, "__wrapped__", None)
    return method is not None


@contextmanager
def low_precision() -> Iterator[None]:
    """Make casts, dots, comparisons and elementwise arithmetic of bf16 and fp8 agree with torch.

    A cast to fp8 saturates, as on a GPU. A dot of fp32 operands that asks for tf32, which is
    triton's default, rounds them to tf32.
    """
    module = interpreter()
    import triton.language as tl

    builder, handle = module.InterpreterBuilder, module.TensorHandle
    raw = {
        tl.bfloat16: torch.bfloat16,
        tl.float8e4nv: torch.float8_e4m3fn,
        tl.float8e5: torch.float8_e5m2,
    }
    stock_cast_impl, stock_fp_to_fp = builder.cast_impl, builder.create_fp_to_fp
    stock_dot, stock_fma = builder.create_dot, builder.create_fma
    stock_binary_op, stock_unary_op = builder.binary_op, builder.unary_op

    def values_of(operand: Any) -> Any:
        """Return the numbers of a handle: fp32 for raw bits, else its data."""
        dtype = raw.get(operand.dtype.scalar)
        if dtype is None:
            return operand.data
        bits = torch.from_numpy(np.ascontiguousarray(operand.data))
        return bits.view(dtype).float().numpy().reshape(operand.data.shape)

    def handle_of(values: Any, dtype_tl: Any) -> Any:
        """Return a handle of a type, rounded to nearest even if that is kept as raw bits."""
        scalar = dtype_tl.scalar
        dtype = raw.get(scalar)
        if dtype is None:
            return handle(np.asarray(values).astype(module._get_np_dtype(scalar)), scalar)
        numbers = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
        if dtype in FP8_MAX:
            limit = FP8_MAX[dtype]
            numbers = torch.where(numbers.isnan(), numbers, numbers.clamp(-limit, limit))
        bits = numbers.to(dtype).view(torch.uint16 if dtype == torch.bfloat16 else torch.uint8)
        return handle(bits.numpy().reshape(np.shape(values)), scalar)

    def is_raw(*operands: Any) -> bool:
        return any(operand.dtype.scalar in raw for operand in operands)

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        if is_raw(src) or dst_type.scalar in raw:
            return handle_of(values_of(src), dst_type)
        return stock_cast_impl(self, src, dst_type)

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        truncates = rounding_mode == module._ir.ROUNDING_MODE.RTZ
        if (is_raw(src) or dst_type.scalar in raw) and not truncates:
            return handle_of(values_of(src), dst_type)
        return stock_fp_to_fp(self, src, dst_type, rounding_mode)

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, *rest: Any) -> Any:
        if is_raw(a, b):
            product = np.matmul(values_of(a), values_of(b), dtype=np.float32)
            return handle((product + d.data).astype(d.data.dtype), d.dtype.scalar)
        if a.dtype.scalar == tl.float32 and precision == module._ir.INPUT_PRECISION.TF32:
            a, b = (handle(to_tf32(operand.data), operand.dtype) for operand in (a, b))
        return stock_dot(self, a, b, d, precision, *rest)

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if is_raw(x, y, z):
            # fp64 and fp32 on the way round much finer than the type of the result.
            wide = np.multiply(values_of(x), values_of(y), dtype=np.float64)
            return handle_of(wide + values_of(z), z.dtype)
        return stock_fma(self, x, y, z)

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        if not is_raw(lhs, rhs):
            return stock_binary_op(self, lhs, rhs, op)
        result = op(values_of(lhs), values_of(rhs))
        return handle(result, tl.int1) if result.dtype == bool else handle_of(result, lhs.dtype)

    def unary_op(self: Any, arg: Any, op: Any) -> Any:
        if not is_raw(arg):
            return stock_unary_op(self, arg, op)
        return handle_of(op(values_of(arg)), arg.dtype)

    # The builder's casts and operators look these methods up by name, so these few serve all of them.
    with replaced(
        builder,
        cast_impl=cast_impl,
        create_fp_to_fp=create_fp_to_fp,
        create_dot=create_dot,
        create_fma=create_fma,
        binary_op=binary_op,
        unary_op=unary_op,
    ):
        yield
