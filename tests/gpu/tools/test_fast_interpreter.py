"""The fast interpreter gives the same bits, patches the language once, and leaves it as it was."""

import torch
import triton.language as tl
from tiny_kernels import largest_and_sum_kernel
from triton.runtime import interpreter

from kvtwin.gpu.tools.fast_interpreter import fast_interpreter


def run(num_launches: int = 1) -> torch.Tensor:
    src, dst = torch.randn(64, generator=torch.Generator().manual_seed(5)), torch.zeros(2)
    for _ in range(num_launches):
        largest_and_sum_kernel[(2,)](src, dst, BLOCK=64)
    return dst


def test_results_are_bit_equal(monkeypatch) -> None:
    stock = run()
    with fast_interpreter():
        fast = run()
    assert stock.tolist() == fast.tolist()
    assert stock[0] > 0


def test_the_language_is_patched_once_for_all_launches(monkeypatch) -> None:
    num_patches = 0
    patch_builtin = interpreter._patch_builtin

    def counted(*args):
        nonlocal num_patches
        num_patches += 1
        patch_builtin(*args)

    monkeypatch.setattr(interpreter, "_patch_builtin", counted)
    with fast_interpreter():
        before = num_patches
        run(num_launches=3)
    assert before > 0
    assert num_patches == before
    run()
    assert num_patches > before


def test_the_language_is_restored() -> None:
    before = tl.load, tl.tensor.__add__
    with fast_interpreter():
        run()
        assert tl.load is not before[0]
    assert (tl.load, tl.tensor.__add__) == before
