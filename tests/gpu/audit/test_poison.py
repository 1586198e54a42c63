"""Poison is a NaN, is told from every other NaN bit by bit, and touches the slots it was asked for."""

import pytest
import torch

from kvtwin.gpu.audit.poison import is_poison, poison

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_the_slots_asked_for_are_poisoned(dtype: torch.dtype) -> None:
    pools = [torch.ones(5, 4, 2, 8, dtype=dtype) for _ in range(3)]
    poison(pools, [(3, 2), (19, 1), (10, 0)])
    for pool in pools:
        by_slot = pool.view(20, 16)
        assert is_poison(pool).nonzero().ravel().tolist() == [3, 4, 19]
        assert by_slot[[3, 4, 19]].isnan().all()
        others = [slot for slot in range(20) if slot not in (3, 4, 19)]
        assert (by_slot[others] == 1).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_nans_of_arithmetic_are_no_poison(dtype: torch.dtype) -> None:
    pool = torch.zeros(1, 5, 1, 8, dtype=dtype)
    nan = torch.zeros(8, dtype=dtype) / torch.zeros(8, dtype=dtype)
    pool[0, 0] = nan
    pool[0, 1] = -nan
    pool[0, 2] = torch.full((8,), float("nan"), dtype=dtype)
    pool[0, 3] = torch.full((8,), float("inf"), dtype=dtype) - float("inf")
    assert pool.view(5, 8)[:4].isnan().all()
    assert not is_poison(pool).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("element", [0, 7, 15])
def test_one_written_element_ends_it(dtype: torch.dtype, element: int) -> None:
    pool = torch.empty(1, 2, 2, 8, dtype=dtype)
    poison([pool], [(0, 2)])
    assert is_poison(pool).all()
    pool.view(2, 16)[1, element] = 0.5
    assert is_poison(pool).tolist() == [True, False]
    # Sums with it are NaN, so that a read of it shows in every output.
    assert (pool.view(2, 16)[0] * 0 + 1).isnan().all()
