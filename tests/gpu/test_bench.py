"""What the benchmark runs, without a GPU to time it on."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kvtwin.gpu.bench import (
    BenchRow,
    BenchShape,
    bench_shapes,
    dry_shapes,
    run_bench,
    run_untimed,
)
from kvtwin.gpu.bench.read_sum import read_sum_launch
from kvtwin.gpu.bench.run import permuted_tables
from kvtwin.gpu.check import Result
from kvtwin.gpu.report import BENCH_HEADER, CHECK_HEADER, bench_line, check_line, check_summary

H200_L2_BYTES = 60 << 20  # a GPU whose L2 is larger than those of the catalogue's others


@pytest.fixture(scope="module")
def rows(on: dict[str, Any]) -> list[BenchRow]:
    return list(run_bench(dry_shapes(), "cpu", run_untimed, read_bytes=1 << 16))


def test_every_shape_runs_paged_contiguous_and_torch(rows: list[BenchRow]) -> None:
    names = ["paged_decode", "contiguous_decode", "torch"]
    assert [row.operation for row in rows] == ["read", *names * len(dry_shapes())]
    for row in rows:
        assert row.duration_ns is None
        assert row.bytes_per_s is None
        assert "not measured on a GPU" in bench_line(row)
        assert BenchRow.from_dict(row.to_dict()) == row


def test_paging_costs_the_table(rows: list[BenchRow]) -> None:
    """The same kernel on the same shape: entries of 4 bytes, 3 blocks of 16 tokens x 2 heads x 2."""
    _, paged, contiguous, *_ = rows
    assert paged.num_bytes - contiguous.num_bytes == 3 * 2 * 2 * 4


def test_tables_are_distinct_and_in_no_order() -> None:
    """tile-ai/TileOPs #2014 (K84): every row the same ascending pages, all of them in the L2."""
    shape = BenchShape(8, 1000)
    tables, num_blocks = permuted_tables(shape)
    assert tables.shape == (8, 63)
    assert sorted(tables.flatten().tolist()) == list(range(num_blocks))
    neighbours = (tables[:, 1:] - tables[:, :-1] == 1).float().mean()
    assert neighbours < 0.05


def test_most_shapes_cannot_live_in_the_l2() -> None:
    large = [shape for shape in bench_shapes() if shape.kv_bytes > 4 * H200_L2_BYTES]
    assert len(large) >= len(bench_shapes()) - 3
    # What the goal is about: at least 256 k tokens in blocks of 16.
    goal = [s for s in large if s.num_tokens >= 256 << 10 and s.block_size == 16]
    assert len(goal) >= 4
    assert bench_shapes()[0] in goal


@pytest.mark.parametrize("num_chunks", [1, 15, 16, 17, 40])
def test_reading_skips_nothing(on: dict[str, Any], num_chunks: int) -> None:
    """Chunks that weigh 1, 2, 3, ...: their sum says that each was read once."""
    chunks = torch.arange(1.0, num_chunks + 1)[:, None].repeat(1, 64)
    order = torch.randperm(num_chunks).int()
    launch = read_sum_launch(chunks, order, multiprocessors=1)
    launch.run()
    assert launch.arguments["sums_ptr"].sum() == 64 * num_chunks * (num_chunks + 1) / 2


def test_lines_say_what_was_measured() -> None:
    shape = BenchShape(64, 4096)
    row = BenchRow("paged_decode", shape, 10**9, 500_000, 1, False, 0.5)
    assert row.bytes_per_s == 2 * 10**12
    line = bench_line(row)
    assert line == (
        "| paged_decode | 64 x 4,096 | 16 | 32/8 | 1 | 1,000,000,000 | 500.0 | 2,000 | 50.0% |"
    )
    assert "L2 helps" in bench_line(replace(row, fits_l2=True))
    assert line.count("|") == BENCH_HEADER.splitlines()[0].count("|")


def test_check_lines_and_summary() -> None:
    passed = Result("cuda", "paged_decode", "plain", 1e-4, 2e-3, 1234)
    failed = replace(passed, error=float("nan"))
    assert check_line(passed) == "| cuda | paged_decode | plain | 0.0001 | 0.002 | 1,234 | pass |"
    assert check_line(passed).count("|") == CHECK_HEADER.splitlines()[0].count("|")
    assert "FAIL: error above tolerance" in check_line(failed)
    assert check_summary([passed]) == "1 checks on cuda: all passed."
    assert check_summary([passed, failed]) == "2 checks on cuda: 1 of them FAILED."
    interpreted = replace(passed, backend="triton-interpret")
    assert check_summary([interpreted]).endswith("all passed; not measured on a GPU.")
    for result in (passed, failed):
        assert Result.from_dict(result.to_dict()).to_dict() == result.to_dict()
    assert not Result.from_dict(failed.to_dict()).passed
