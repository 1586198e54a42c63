"""What a launch depends on: shapes, never contents, so that a CUDA graph can replay it."""

from typing import Any

import pytest
import torch

from kvtwin.gpu.arguments import SplitPlan
from kvtwin.gpu.kernels import contiguous_decode, paged_decode, paged_prefill, store_kv
from kvtwin.gpu.kernels.launch import Launch


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Launches that would have been made; nothing runs."""
    launches: list[Launch] = []
    monkeypatch.setattr(Launch, "run", lambda launch: launches.append(launch))
    return launches


def meta(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """A tensor without contents: whoever reads one element gets an exception."""
    return torch.empty(shape, dtype=dtype, device="meta")


def test_a_meta_tensor_cannot_be_read() -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        meta(3).tolist()


def ints(*shape: int) -> torch.Tensor:
    return meta(*shape, dtype=torch.int32)


def test_no_operation_reads_from_the_device(recorded: list[Launch]) -> None:
    pool, v_pool, query = meta(9, 16, 2, 64), meta(9, 16, 2, 64), meta(5, 8, 64)
    paged_decode(query, pool, pool, ints(5, 7), ints(5), scale=0.1)
    paged_decode(query, pool, pool, ints(5, 7), ints(5), scale=0.1, split=SplitPlan(4))
    paged_prefill(query, pool, pool, ints(3, 7), ints(4), ints(3), scale=0.1, window=4)
    kv = meta(5, 30, 2, 64)
    contiguous_decode(query, kv, kv, ints(5), scale=0.1, soft_cap=3.0)
    rows = meta(5, 2, 64)
    store_kv(rows, rows, pool, v_pool, meta(5, dtype=torch.int64))
    assert [launch.kernel.fn.__name__ for launch in recorded] == [
        "decode_kernel",
        "decode_kernel",
        "merge_kernel",
        "prefill_kernel",
        "decode_kernel",
        "store_kv_kernel",
    ]


@pytest.mark.parametrize(
    ("query_len", "num_seqs", "num_tiles"),
    # Tiles of 16 tokens x 4 heads in 64 rows: all that any lengths of this sum may need, padding's too.
    [(33, 1, 33 // 16 + 2), (33, 4, 33 // 16 + 5), (1, 1, 2), (0, 3, 0)],
)
def test_the_prefill_grid_is_of_sums(
    recorded: list[Launch], query_len: int, num_seqs: int, num_tiles: int
) -> None:
    pool = meta(9, 16, 2, 256)
    arguments: tuple[Any, ...] = (ints(num_seqs, 7), ints(num_seqs + 1), ints(num_seqs))
    paged_prefill(meta(query_len, 8, 256), pool, pool, *arguments, scale=0.1)
    (launch,) = recorded
    assert launch.arguments["QUERY_TILE"] == 16
    assert launch.grid == (num_tiles, 2)


@pytest.mark.parametrize("total", range(1, 20))
def test_any_lengths_of_a_sum_fit_that_grid(total: int) -> None:
    """Every way to cut `total` tokens into three sequences and padding, in tiles of 4."""
    size = 4
    num_tiles = total // size + 3 + 1
    for first in range(total + 1):
        for second in range(first, total + 1):
            for third in range(second, total + 1):
                starts, taken = [0, first, second, third, total], set()
                for seq in range(4):
                    own = -(-(starts[seq + 1] - starts[seq]) // size)
                    tiles = {starts[seq] // size + seq + tile for tile in range(own)}
                    assert not tiles & taken
                    assert not tiles or max(tiles) < num_tiles
                    taken |= tiles
