"""Host memory of a GPU's pool is pinned, and memory that is not is refused: said without a GPU."""

import re
from typing import Any

import pytest
import torch

from kvtwin.gpu.arguments import SwapMove, allocate_host_pool
from kvtwin.gpu.arguments.operations import check_moves
from kvtwin.gpu.errors import KernelInputError


class OnGpu(torch.Tensor):
    """Says that it is there, and is not."""

    is_cuda = True  # type: ignore[assignment]


class Pinned(torch.Tensor):
    """Says that it is."""

    def is_pinned(self, device: Any = None) -> bool:
        return True


@pytest.mark.parametrize("kind", [torch.Tensor, OnGpu])
def test_the_host_pool_is_pinned_for_a_gpu(
    monkeypatch: pytest.MonkeyPatch, kind: type[torch.Tensor]
) -> None:
    asked: list[bool] = []
    empty = torch.empty

    def recorded(*shape: Any, pin_memory: bool, **options: Any) -> torch.Tensor:
        asked.append(pin_memory)
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", recorded)
    k_pool = torch.zeros(3, 4, 2, 16).as_subclass(kind)
    host_pool = allocate_host_pool(k_pool, 5)
    assert host_pool.shape == (5, 2, 4, 2, 16)
    assert host_pool.device.type == "cpu"
    assert asked == [kind is OnGpu]


def test_pageable_memory_is_refused_for_a_gpu() -> None:
    """A copy from it is not asynchronous, and its pages may be reused before it is done (LMCache
    PR#4830, ggml-org/llama.cpp #26828, K79)."""
    pools = [torch.zeros(3, 4, 2, 16) for _ in "kv"]
    on_gpu = [pool.as_subclass(OnGpu) for pool in pools]
    host_pool, moves = torch.zeros(5, 2, 4, 2, 16), [SwapMove(True, 0, 0)]
    check_moves(*pools, host_pool, moves)
    check_moves(*on_gpu, host_pool.as_subclass(Pinned), moves)
    message = re.escape("host_pool is not pinned; make it with allocate_host_pool")
    with pytest.raises(KernelInputError, match=message):
        check_moves(*on_gpu, host_pool, moves)
    with pytest.raises(KernelInputError, match="host_pool must be contiguous host memory"):
        check_moves(*pools, host_pool.as_subclass(OnGpu), moves)


@pytest.mark.parametrize("num_blocks", [-1, 1.5, None])
def test_a_host_pool_has_a_number_of_blocks(num_blocks: Any) -> None:
    with pytest.raises(KernelInputError, match=f"num_host_blocks is {num_blocks}; it must be"):
        allocate_host_pool(torch.zeros(3, 4, 2, 16), num_blocks)
