"""Time decode against contiguous KV, torch's attention, and the device's read bandwidth."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
import torch.nn.functional as functional

from kvtwin.sim.traffic import decode_traffic

from ..arguments import plan_splits
from ..arguments.tuning import decode_tuning, num_multiprocessors
from .shapes import BenchShape

L2_MULTIPLE = 4  # what is read must be this many times the L2, or it is the L2 that is measured
READ_BYTES = 4 << 30
NS_PER_S = 10**9

Timer = Callable[[Callable[[], object]], int | None]
# What is told of a timing that raised: its configuration and the error.
Failed = Callable[[str, Exception], None]


def _raise(configuration: str, error: Exception) -> None:
    raise error


@dataclass(frozen=True)
class BenchRow:
    """One operation on one shape. No duration: it ran, but not on a GPU, so it was not timed.

    `num_bytes` is the traffic model's; `fits_l2`: the KV is less than 4 times the L2, so a cache may
    have served it. `share`: of the read bandwidth that was measured in the same run.
    """

    operation: str
    shape: BenchShape | None
    num_bytes: int
    duration_ns: int | None
    num_splits: int | None
    fits_l2: bool | None
    share: float | None

    @property
    def bytes_per_s(self) -> float | None:
        return self.num_bytes * NS_PER_S / self.duration_ns if self.duration_ns else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        row = asdict(self) | {"bytes_per_s": self.bytes_per_s}
        row["shape"] = asdict(self.shape) if self.shape else None
        return row

    @classmethod
    def from_dict(cls, line: dict[str, Any]) -> "BenchRow":
        """The row that `to_dict` wrote."""
        kept = {field.name: line[field.name] for field in fields(cls)}
        kept["shape"] = BenchShape(**line["shape"]) if line["shape"] else None
        return cls(**kept)


def run_bench(
    shapes: Sequence[BenchShape],
    device: str,
    timer: Timer,
    read_bytes: int = READ_BYTES,
    failed: Failed = _raise,
) -> Iterator[BenchRow]:
    """The device's read bandwidth, then for each shape paged, contiguous and torch's attention.

    A timing that raises goes to `failed`, and the next one runs.
    """
    bytes_per_s = None
    try:
        bandwidth = _read_bandwidth(device, timer, read_bytes)
        bytes_per_s = bandwidth.bytes_per_s
        yield bandwidth
    except Exception as error:
        failed("read", error)
    for shape in shapes:
        try:
            yield from _bench_shape(shape, device, timer, bytes_per_s, failed)
        except Exception as error:  # no memory for its tensors, as far as one can foresee
            failed(str(shape), error)


def _read_bandwidth(device: str, timer: Timer, read_bytes: int) -> BenchRow:
    # Here and below: rows are read and printed without triton, too.
    from .read_sum import CHUNK_ELEMENTS, read_sum_launch

    num_chunks = max(1, read_bytes // (4 * CHUNK_ELEMENTS))
    chunks = torch.ones(num_chunks, CHUNK_ELEMENTS, device=device)
    order = torch.randperm(num_chunks, generator=torch.Generator().manual_seed(0))
    launch = read_sum_launch(
        chunks, order.to(device, torch.int32), num_multiprocessors(chunks.device)
    )
    duration_ns = timer(launch.run)
    num_bytes = chunks.numel() * chunks.element_size()
    # A kernel that skipped anything would look fast.
    assert float(launch.arguments["sums_ptr"].double().sum()) == chunks.numel()
    return BenchRow("read", None, num_bytes, duration_ns, None, _fits_l2(num_bytes, device), None)


def _bench_shape(
    shape: BenchShape, device: str, timer: Timer, bandwidth: float | None, failed: Failed
) -> Iterator[BenchRow]:
    from ..kernels import contiguous_decode, paged_decode, workspace_elements

    generator = torch.Generator(device).manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, device=device, dtype=shape.dtype)

    query = normal(shape.num_seqs, shape.num_heads, shape.head_dim)
    lens = torch.full((shape.num_seqs,), shape.context_len, dtype=torch.int32, device=device)
    scale = shape.head_dim**-0.5
    split = plan_splits(
        shape.num_tokens, shape.context_len, shape.num_kv_heads, num_multiprocessors(query.device)
    )
    num_elements = workspace_elements(shape.num_seqs, shape.num_heads, shape.head_dim, split)
    options: dict[str, Any] = {
        "scale": scale,
        "split": split,
        "out": torch.empty_like(query),
        "workspace": torch.empty(num_elements, device=device) if num_elements else None,
    }

    def row(operation: str, num_bytes: int, run: Callable[[], object]) -> Iterator[BenchRow]:
        try:
            duration_ns = timer(run)
        except Exception as error:
            failed(f"{operation} {shape}", error)
            return
        rate = num_bytes * NS_PER_S / duration_ns if duration_ns else None
        yield BenchRow(
            operation,
            shape,
            num_bytes,
            duration_ns,
            None if operation == "torch" else split.num_splits,
            _fits_l2(shape.kv_bytes, device),
            rate / bandwidth if rate and bandwidth else None,
        )

    def traffic(*, paged: bool) -> int:
        return decode_traffic(
            [shape.context_len] * shape.num_seqs,
            shape.attention_shape(paged=paged),
            tile_tokens=decode_tuning(shape.head_dim, shape.dtype).tile_tokens,
            num_splits=split.num_splits,
            min_split_tokens=split.min_split_tokens,
        ).num_bytes

    tables, num_blocks = permuted_tables(shape)
    tables = tables.to(device)
    pools = [
        normal(num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim) for _ in range(2)
    ]
    yield from row(
        "paged_decode",
        traffic(paged=True),
        lambda: paged_decode(query, *pools, tables, lens, **options),
    )
    pools.clear()
    k, v = (
        normal(shape.num_seqs, shape.context_len, shape.num_kv_heads, shape.head_dim)
        for _ in range(2)
    )
    yield from row(
        "contiguous_decode",
        traffic(paged=False),
        lambda: contiguous_decode(query, k, v, lens, **options),
    )
    heads_first = [tensor.transpose(1, 2).contiguous() for tensor in (k, v)]
    # K, V, query and output once: what torch moves beyond that is its own affair.
    least_bytes = shape.kv_bytes + 2 * query.numel() * query.element_size()
    yield from row(
        "torch",
        least_bytes,
        lambda: functional.scaled_dot_product_attention(
            query[:, :, None], *heads_first, scale=scale, enable_gqa=shape.group > 1
        ),
    )


def permuted_tables(shape: BenchShape) -> tuple[torch.Tensor, int]:
    """int32 tables that hold every block of the pool once, in random order; and their number.

    Rows that shared blocks, or had ascending ones, would find them in the L2 (tile-ai/TileOPs
    #2014).
    """
    num_entries = -(-shape.context_len // shape.block_size)
    num_blocks = shape.num_seqs * num_entries
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1))
    return order.view(shape.num_seqs, num_entries).to(torch.int32), num_blocks


def _fits_l2(num_bytes: int, device: str) -> bool | None:
    if device == "cpu":
        return None
    l2_bytes: int = torch.cuda.get_device_properties(device).L2_cache_size
    return num_bytes < L2_MULTIPLE * l2_bytes
