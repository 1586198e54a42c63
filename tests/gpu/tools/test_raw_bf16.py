"""bf16 in the stock interpreter is refused, because it would be wrong and look right."""

import pytest
import torch

from kvtwin.gpu.errors import KernelInputError
from kvtwin.gpu.kernels import contiguous_decode, store_kv
from kvtwin.gpu.tools.low_precision import is_low_precision, low_precision
from kvtwin.gpu.tools.overflow import int32_checks


def decode(dtype: torch.dtype) -> torch.Tensor:
    """One token that sees two, both with a V of 3."""
    query, k = torch.ones(1, 1, 16, dtype=dtype), torch.ones(1, 2, 1, 16, dtype=dtype)
    lens = torch.tensor([2], dtype=torch.int32)
    return contiguous_decode(query, k, torch.full_like(k, 3.0), lens, scale=0.25)


def test_without_low_precision_it_is_refused() -> None:
    with pytest.raises(KernelInputError, match=r"bfloat16.*low_precision") as raised:
        decode(torch.bfloat16)
    assert len(str(raised.value).splitlines()) == 1
    assert decode(torch.float16).eq(3.0).all()


def test_with_low_precision_it_is_right() -> None:
    with low_precision():
        assert decode(torch.bfloat16).eq(3.0).all()
        with int32_checks():
            assert is_low_precision()
    assert not is_low_precision()


def test_nothing_is_written_before_the_refusal() -> None:
    rows = torch.ones(1, 1, 16, dtype=torch.bfloat16)
    pool = torch.zeros(1, 16, 1, 16, dtype=torch.bfloat16)
    with pytest.raises(KernelInputError):
        store_kv(rows, rows, pool, pool.clone(), torch.tensor([0]))
    assert pool.eq(0).all()
