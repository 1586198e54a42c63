"""Copies, swaps, weights and counted bytes that are wrong in one place only fail."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvtwin.gpu import torch_ops
from kvtwin.gpu.check import Backend, Case, judge, run_case, run_probe

MOVERS = ["store_kv", "copy_blocks", "swap_blocks"]


def after(kernel: str, spoil: Any) -> Backend:
    """The torch operations; `spoil(arguments, named)` is called behind one of them."""

    def operation(*args: Any, **named: Any) -> Any:
        result = getattr(torch_ops, kernel)(*args, **named)
        spoil(args, named)
        return result

    ops: Any = SimpleNamespace(**{**vars(torch_ops), kernel: operation})
    return Backend("torch", ops, "cpu")


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("kernel", MOVERS)
def test_one_byte_between_rows_of_either_pool_fails(kernel: str, place: int) -> None:
    def spoil(args: Any, named: Any) -> None:
        pool = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim() == 4][place]
        pool.as_strided((1,), (1,), pool.storage_offset() + pool.shape[-1]).fill_(0.5)

    case = Case(kernel, context_lens=(0, 3, 17), layout="padded")
    assert run_case(case, Backend("torch", torch_ops, "cpu")).passed
    assert run_case(case, after(kernel, spoil)).error > 0


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("kernel", MOVERS)
def test_one_number_of_either_pool_fails(kernel: str, place: int) -> None:
    """Of pools that share no storage."""

    def spoil(args: Any, named: Any) -> None:
        pools = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim() == 4]
        pools[place][-1, -1, -1, -1] = 77.0

    assert run_case(Case(kernel, context_lens=(0, 3, 17)), after(kernel, spoil)).error > 0


@pytest.mark.parametrize("host_block", [0, 1, 3])
def test_one_number_of_host_memory_fails(host_block: int) -> None:
    def spoil(args: Any, named: Any) -> None:
        args[2][host_block, 1, -1, -1, -1] = 77.0

    assert run_case(Case("swap_blocks"), after("swap_blocks", spoil)).error == 1.0


def test_weights_that_do_not_sum_to_1_fail() -> None:
    def spoil(args: Any, named: Any) -> None:
        named["out"].mul_(1.05)

    case = Case("paged_decode", group=3, block_size=5)
    assert not run_probe("one-hot V", case, after("paged_decode", spoil)).passed


@pytest.mark.parametrize("more", [-1, 1])
def test_written_bytes_that_the_model_does_not_have_fail(
    on: dict[str, Any], more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a kernel writes more than the model says, or less."""
    model = judge.traffic_of

    def changed(case: Case, tuning: Any) -> Any:
        traffic = model(case, tuning)
        traffic.written_bytes["out"] += more
        return traffic

    monkeypatch.setattr(judge, "traffic_of", changed)
    result = run_case(Case("paged_decode"), on["triton-interpret"])
    assert not result.passed
    assert "bytes of out written, the model has" in result.problem
