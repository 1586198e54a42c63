"""Kernels of a few lines for the tests of the tools, some with a fault on purpose."""

import triton
import triton.language as tl


@triton.jit
def copy_kernel(src, dst, num_elements, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < num_elements
    if MASKED:
        tl.store(dst + offsets, tl.load(src + offsets, mask=mask), mask=mask)
    else:
        tl.store(dst + offsets, tl.load(src + offsets), mask=mask)


@triton.jit
def rows_kernel(src, dst, src_stride, dst_stride, NUM_COLUMNS: tl.constexpr):
    """Copy one row per program."""
    row = tl.program_id(0)
    columns = tl.arange(0, NUM_COLUMNS)
    tl.store(dst + row * dst_stride + columns, tl.load(src + row * src_stride + columns))


@triton.jit
def gather_kernel(src, indices, dst, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(dst + lanes, tl.load(src + tl.load(indices + lanes)))


@triton.jit
def pairs_kernel(src, dst, BLOCK: tl.constexpr):
    """Two lanes of the store share each element."""
    lanes = tl.arange(0, BLOCK)
    tl.store(dst + lanes // 2, tl.load(src + lanes))


@triton.jit
def sum_kernel(src, dst, STEP: tl.constexpr, BLOCK: tl.constexpr):
    """Programs STEP elements apart write BLOCK elements each: they overlap if STEP < BLOCK."""
    lanes = tl.arange(0, BLOCK)
    tl.store(dst + tl.program_id(0) * STEP + lanes, tl.load(src + lanes) + 1)


@triton.jit
def shift_kernel(values, BLOCK: tl.constexpr):
    """Each program reads the block that the next one writes."""
    lanes = tl.arange(0, BLOCK)
    start = tl.program_id(0) * BLOCK
    tl.store(values + start + lanes, tl.load(values + start + BLOCK + lanes))


@triton.jit
def atomic_kernel(total, BLOCK: tl.constexpr):
    """All lanes of all programs add 1 to one element."""
    tl.atomic_add(total + tl.arange(0, BLOCK) * 0, 1)


@triton.jit
def product_kernel(dst, a, b, WIDE: tl.constexpr):
    """Store a * b, in 64 bits if WIDE."""
    if WIDE:
        tl.store(dst, a.to(tl.int64) * b)
    else:
        tl.store(dst, (a * b).to(tl.int64))


@triton.jit
def narrow_kernel(dst, src):
    tl.store(dst, tl.load(src).to(tl.int32))


@triton.jit
def largest_and_sum_kernel(src, dst, BLOCK: tl.constexpr):
    """Use jit functions of the language inside a kernel, and a zeros."""
    values = tl.load(src + tl.arange(0, BLOCK)) + tl.zeros([BLOCK], tl.float32)
    tl.store(dst, tl.max(values, 0))
    tl.store(dst + 1, tl.sum(values, 0))


@triton.jit
def cast_kernel(src, dst, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(dst + lanes, tl.load(src + lanes).to(dst.dtype.element_ty))


@triton.jit
def arithmetic_kernel(a, b, total, product, larger, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    left, right = tl.load(a + lanes), tl.load(b + lanes)
    tl.store(total + lanes, left + right)
    tl.store(product + lanes, left * right)
    tl.store(larger + lanes, (left > right).to(tl.int8))


@triton.jit
def dot_kernel(a, b, dst, N: tl.constexpr, PRECISION: tl.constexpr):
    rows, columns = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    left = tl.load(a + rows * N + columns)
    right = tl.load(b + rows * N + columns)
    tl.store(dst + rows * N + columns, tl.dot(left, right, input_precision=PRECISION))


def fail():
    raise ValueError("planted")


@triton.jit
def helper(pointer):
    fail()


@triton.jit
def fail_kernel(pointer):
    """Raise a Python error two calls deep, as the tools' own checks do."""
    helper(pointer)
