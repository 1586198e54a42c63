"""Compile tiny kernels for two GPUs that are not there and print what became of them, as JSON.

Run by test_fake_driver.py in a process of its own, without TRITON_INTERPRET.
"""

import json
from dataclasses import asdict

import torch
import triton
import triton.language as tl
from tiny_kernels import copy_kernel, dot_kernel

from kvtwin.gpu.tools.fake_driver import compile_only
from kvtwin.gpu.tools.machine_code import machine_code


@triton.jit
def load_row(ptr, offsets):
    return tl.load(ptr + offsets)


@triton.jit
def load_twice(ptr, offsets):
    return load_row(ptr, offsets) + load_row(ptr, offsets + 4096)


@triton.jit
def nested_kernel(x_ptr, y_ptr, flags_ptr, dst_ptr, BLOCK: tl.constexpr):
    """Load through helpers of helpers: fp16 in 16 bytes, bytes one by one (a stride of 3)."""
    lanes = tl.arange(0, BLOCK)
    values = load_twice(x_ptr, lanes) * load_row(y_ptr, lanes)
    flags = tl.load(flags_ptr + lanes * 3)
    tl.store(dst_ptr + lanes, values * flags)


@triton.jit
def crowded_kernel(src_ptr, dst_ptr, BLOCK: tl.constexpr):
    """Keep BLOCK fp32 alive over a sum: 64 registers of each of 128 threads for 8,192."""
    lanes = tl.arange(0, BLOCK)
    values = tl.load(src_ptr + lanes)
    tl.store(dst_ptr + lanes, values / tl.sum(values, 0))


def launches():
    """Yield (name, launch) pairs."""
    half = torch.ones(8192, dtype=torch.float16)
    out = torch.zeros(8192, dtype=torch.float16)
    square, result = torch.ones(64, 64, dtype=torch.float16), torch.zeros(64, 64)

    def copy(src):
        return lambda: copy_kernel[(1,)](src, out, 1024, BLOCK=1024, MASKED=False)

    def dot(operand, side):
        return lambda: dot_kernel[(1,)](operand, operand, result, N=side, PRECISION="ieee")

    yield "copy aligned", copy(half)
    yield "copy misaligned", copy(half[1:])
    yield "dot fp16", dot(square, 64)
    yield "dot fp32", dot(square.float(), 16)
    flags = torch.ones(4096, dtype=torch.int8)
    yield "nested", lambda: nested_kernel[(1,)](half, half, flags, out, BLOCK=1024)
    many, shares = torch.ones(8192), torch.zeros(8192)
    yield "crowded", lambda: crowded_kernel[(1,)](many, shares, BLOCK=8192)
    yield "spill", lambda: crowded_kernel[(1,)](many, shares, BLOCK=8192, maxnreg=32)
    assert not out.any(), "a kernel that was to be compiled has run"
    assert not result.any(), "a kernel that was to be compiled has run"


def main() -> None:
    """Print {arch: {name: MachineCode and what the launch says}}."""
    found = {}
    for arch in (80, 90):
        for name, launch in launches():
            with compile_only(arch) as compiled:
                launch()
            (only,) = compiled
            found.setdefault(arch, {})[name] = {
                **asdict(machine_code(only.compiled)),
                "kernel_name": only.kernel_name,
                "grid": only.grid,
                "target": only.compiled.metadata.target.arch,
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
