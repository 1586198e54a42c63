"""The arithmetic of the benchmark, on clocks that tests set: bytes, rates, shares, replays."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from kvtwin.gpu.bench import BenchRow, BenchShape, run_bench, time_on_gpu, timing
from kvtwin.gpu.bench import run as bench

READ_BYTES = 1 << 16


def rows_of(shape: BenchShape, durations_ns: list[int]) -> list[BenchRow]:
    """What the benchmark says where a timer measures these durations, one after the other."""
    left = iter(durations_ns)

    def timer(run: Callable[[], object]) -> int:
        run()
        return next(left)

    return list(run_bench([shape], "cpu", timer, read_bytes=READ_BYTES))


def test_one_split_by_hand(on: dict[str, Any]) -> None:
    """65,536 bytes in 1,000 ns are 65.536 GB/s. 2 sequences of 40 tokens, 8 heads on 2, 16 x 2 bytes."""
    shape = BenchShape(2, 40, num_kv_heads=2, head_dim=16)
    kv, query = 2 * 2 * 40 * 2 * 32, 2 * 8 * 32
    # Lengths for 2 heads; entries of 3 blocks for 2 heads, of 4 bytes each.
    contiguous = kv + query + query + 2 * 2 * 4
    paged = contiguous + 2 * 3 * 2 * 4
    read, *rows = rows_of(shape, [1000, 2000, 500, 4000])
    assert (read.operation, read.num_bytes, read.bytes_per_s) == ("read", READ_BYTES, 65.536e9)
    assert read.share is None
    assert [(row.operation, row.num_bytes, row.num_splits) for row in rows] == [
        ("paged_decode", paged, 1),
        ("contiguous_decode", contiguous, 1),
        ("torch", kv + query + query, None),
    ]
    for row, duration_ns in zip(rows, (2000, 500, 4000), strict=True):
        assert row.duration_ns == duration_ns
        assert row.bytes_per_s == row.num_bytes / duration_ns * 1e9
        assert row.share == pytest.approx(row.num_bytes / duration_ns / 65.536, rel=1e-12)
        assert row.fits_l2 is None


def test_three_splits_by_hand(on: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """132 multiprocessors want 600 tokens cut: 256, 256 and 88 of them."""
    monkeypatch.setattr(bench, "num_multiprocessors", lambda device: 132)
    monkeypatch.setattr(bench, "_read_bandwidth", lambda *rest: BenchRow("read", *[None] * 6))
    shape = BenchShape(1, 600, num_kv_heads=1, head_dim=16)
    _, paged, contiguous, _ = rows_of(shape, [1, 1, 1])
    assert paged.num_splits == contiguous.num_splits == 3
    parts = 3 * 4 * 16 * 4  # of 4 heads, fp32
    states = 2 * 3 * 4 * 4  # largest scores and sums
    kv, query, out, lens = 2 * 600 * 32, 3 * 4 * 32, 4 * 32, 3 * 4
    assert contiguous.num_bytes == kv + query + out + lens + 2 * (parts + states)
    # 9 tiles of 64 tokens look 4 blocks up, the last one 2.
    assert paged.num_bytes == contiguous.num_bytes + (9 * 4 + 2) * 4
    assert paged.share is None  # nothing to compare with


@pytest.mark.parametrize(("num_bytes", "fits"), [(3999, True), (4000, False)])
def test_what_fits_the_l2(monkeypatch: pytest.MonkeyPatch, num_bytes: int, fits: bool) -> None:
    """Less than 4 times the L2 may have been served by it."""
    properties = SimpleNamespace(L2_cache_size=1000)
    monkeypatch.setattr(bench.torch.cuda, "get_device_properties", lambda device: properties)
    assert bench._fits_l2(num_bytes, "cuda") is fits


class FakeCuda:
    """A GPU whose replays last as long as a test says, by its own clock."""

    def __init__(self, durations_ns: Iterator[int]) -> None:
        self.now_ns, self.num_replays, self.num_runs_in_graph = 0, 0, 0
        self.is_capturing = False
        cuda = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at_ns = cuda.now_ns

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, end: "Event") -> float:
                return (end.at_ns - self.at_ns) / 1e6  # milliseconds

        class CUDAGraph:
            def replay(self) -> None:
                cuda.now_ns += next(durations_ns)
                cuda.num_replays += 1

        self.Event, self.CUDAGraph = Event, CUDAGraph

    def Stream(self) -> Any:
        return SimpleNamespace(wait_stream=lambda other: None)

    current_stream = Stream

    def stream(self, stream: Any) -> Any:
        return nullcontext()

    @contextmanager
    def graph(self, graph: Any) -> Iterator[None]:
        self.is_capturing = True
        yield
        self.is_capturing = False


def measured(
    monkeypatch: pytest.MonkeyPatch, durations_ns: Iterator[int]
) -> tuple[int, FakeCuda, list[bool]]:
    cuda, runs = FakeCuda(durations_ns), []
    monkeypatch.setattr(timing, "torch", SimpleNamespace(cuda=cuda))
    duration_ns = time_on_gpu(lambda: runs.append(cuda.is_capturing))
    return duration_ns, cuda, runs


def test_a_run_is_warmed_up_captured_once_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 replays of 50 us tell that 400 of them are a sample of 20 ms, of which there are 7."""

    def constant() -> Iterator[int]:
        while True:
            yield 50_000

    duration_ns, cuda, runs = measured(monkeypatch, constant())
    assert duration_ns == 50_000
    assert runs == [False, True]
    assert cuda.num_replays == 3 + 7 * 400


def test_the_median_of_samples_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs longer than a sample: one replay each, of which three were disturbed."""
    samples = [30_000_000, 90_000_000, 31_000_000, 29_000_000, 99_000_000, 32_000_000, 95_000_000]
    duration_ns, cuda, _ = measured(monkeypatch, iter([30_000_000] * 3 + samples))
    assert duration_ns == 32_000_000
    assert cuda.num_replays == 10
