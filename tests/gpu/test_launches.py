"""What a launch depends on: shapes, never contents, so that a CUDA graph can replay it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from compiling_process import run_compiling

from kvtwin.gpu.arguments import SplitPlan
from kvtwin.gpu.kernels import (
    contiguous_decode,
    copy_blocks,
    merge_partials,
    paged_decode,
    paged_prefill,
    store_kv,
)
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


class OnSecondGpu(torch.Tensor):
    """Says that it is there, and is not."""

    device = torch.device("cuda", 1)  # type: ignore[assignment]
    is_cuda = True  # type: ignore[assignment]


def test_kernels_run_on_the_device_of_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """linkedin/Liger-Kernel #1303; unslothai/unsloth PR#6912: triton launches on the current device,
    and memory of another one faults there, or comes back as garbage."""
    events: list[Any] = []

    @contextmanager
    def device(wanted: torch.device) -> Iterator[None]:
        events.append(wanted)
        yield
        events.append("back")

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda **arguments: events.append(grid)

    monkeypatch.setattr(torch.cuda, "device", device)
    out = torch.zeros(3).as_subclass(OnSecondGpu)
    Launch(Kernel(), (7,), {"out_ptr": out, "window": 0}, {}).run()
    assert events == [torch.device("cuda", 1), (7,), "back"]
    Launch(Kernel(), (7,), {"out_ptr": torch.zeros(3)}, {}).run()
    assert events[3:] == [(7,)]


ON_CPU = """
import torch
from kvtwin.gpu.errors import KernelInputError
from kvtwin.gpu.kernels import copy_blocks
pool = torch.zeros(2, 3, 4, 1, 16)
try:
    copy_blocks(pool[0], pool[1], torch.tensor([[0, 1]]))
except KernelInputError as error:
    print(error)
"""


def test_compiled_kernels_refuse_memory_of_the_cpu() -> None:
    assert run_compiling("-c", ON_CPU) == (
        "k_to is on cpu, and compiled kernels run on cuda: set TRITON_INTERPRET=1 before triton is imported, "
        "or use kvtwin.gpu.torch_ops\n"
    )


# CUDA C++ Programming Guide, technical specifications: blocks of a grid by dimension.
MAX_GRID = (2**31 - 1, 65_535, 65_535)


def test_grids_keep_cudas_limits(recorded: list[Launch]) -> None:
    """flashinfer-ai/flashinfer #3125; fla-org/flash-linear-attention #172; SandAI-org/MagiAttention PR#40:
    batches in a dimension of the grid that ends at 65,535. Here: 70,000 sequences, tokens, blocks, slots."""
    many = 70_000
    pool, v_pool = meta(many, 16, 8, 128), meta(many, 16, 8, 128)
    query = meta(many, 64, 128)
    paged_decode(query, pool, v_pool, ints(many, 9), ints(many), scale=0.1, split=SplitPlan(64))
    paged_prefill(query, pool, v_pool, ints(many, 9), ints(many + 1), ints(many), scale=0.1)
    store_kv(meta(many, 8, 128), meta(many, 8, 128), pool, v_pool, meta(many, dtype=torch.int64))
    copy_blocks(pool, v_pool, meta(many, 2, dtype=torch.int64))
    one_block = meta(2, many, 8, 128), meta(2, many, 8, 128)
    copy_blocks(*one_block, meta(1, 2, dtype=torch.int64))
    parts = meta(many, 64, 64, 128, dtype=torch.float32)
    merge_partials(parts, meta(many, 64, 64, dtype=torch.float32), out=query)
    assert len(recorded) == 7
    for launch in recorded:
        sizes = (*launch.grid, 1, 1)[:3]
        assert all(1 <= size <= most for size, most in zip(sizes, MAX_GRID, strict=True)), launch
    assert any(max(launch.grid) > 65_535 for launch in recorded)


@pytest.mark.parametrize(
    ("num_seqs", "num_splits"),
    # 2 x 132 programs wanted, and 2 KV heads: a share is num_seqs x 8,192 x 2 / 264 tokens, or 256.
    [(1, 32), (2, 32), (16, 9), (64, 3), (300, 1)],
)
def test_splits_are_planned_for_the_whole_batch(
    recorded: list[Launch], monkeypatch: pytest.MonkeyPatch, num_seqs: int, num_splits: int
) -> None:
    """All contexts as long as the table is wide: 512 entries of 16 tokens."""
    from kvtwin.gpu.kernels import paged_decode as module

    source = sys.modules[module.__module__]
    monkeypatch.setattr(source, "num_multiprocessors", lambda device: 132)
    pool, query = meta(9, 16, 2, 64), meta(num_seqs, 8, 64)
    paged_decode(query, pool, pool, ints(num_seqs, 512), ints(num_seqs), scale=0.1)
    kv = meta(num_seqs, 8192, 2, 64)
    contiguous_decode(query, kv, kv, ints(num_seqs), scale=0.1)
    decodes = [launch for launch in recorded if launch.kernel.fn.__name__ == "decode_kernel"]
    assert [launch.grid for launch in decodes] == [(num_seqs, 2, num_splits)] * 2
