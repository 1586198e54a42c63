"""The memory guard: byte counts by hand arithmetic, and each kind of planted fault is caught."""

import pytest
import torch
from tiny_kernels import (
    atomic_kernel,
    copy_kernel,
    gather_kernel,
    pairs_kernel,
    rows_kernel,
    shift_kernel,
    sum_kernel,
)

from kvtwin.gpu.tools.guard import MemoryFault, MemoryGuard


def test_bytes_are_those_of_the_active_lanes() -> None:
    src, dst = torch.randn(20, dtype=torch.float32), torch.zeros(20)
    with MemoryGuard(src=src, dst=dst) as guard:
        copy_kernel[(3,)](src, dst, 20, BLOCK=8, MASKED=True)
    assert torch.equal(src, dst)
    # 20 elements of 4 bytes, although 3 programs have 24 lanes.
    assert guard.read_bytes == {"src": 80}
    assert guard.written_bytes == {"dst": 80}


def test_bytes_add_up_over_launches_and_names_fall_back_to_parameters() -> None:
    src, dst = torch.ones(8, dtype=torch.float16), torch.zeros(8, dtype=torch.float16)
    with MemoryGuard(source=src) as guard:
        for _ in range(3):
            copy_kernel[(1,)](src, dst, 8, BLOCK=8, MASKED=True)
    assert guard.read_bytes == {"source": 3 * 8 * 2}
    assert guard.written_bytes == {"copy_kernel.dst": 3 * 8 * 2}


def test_lanes_with_one_address_count_once_as_distinct() -> None:
    src, dst = torch.arange(4.0), torch.zeros(8)
    indices = torch.tensor([0, 0, 0, 1, 1, 3, 3, 3], dtype=torch.int32)
    with MemoryGuard(src=src, indices=indices) as guard:
        gather_kernel[(1,)](src, indices, dst, BLOCK=8)
    assert dst.tolist() == [0, 0, 0, 1, 1, 3, 3, 3]
    assert guard.read_bytes == {"src": 8 * 4, "indices": 8 * 4}
    assert guard.distinct_read_bytes == {"src": 3 * 4, "indices": 8 * 4}


def test_unmasked_tail_is_caught_with_tensor_offset_and_program() -> None:
    storage = torch.zeros(64)
    src, dst = storage[:20], torch.zeros(24)
    with (
        pytest.raises(MemoryFault) as caught,
        MemoryGuard(src=src, dst=dst),
    ):
        copy_kernel[(3,)](src, dst, 24, BLOCK=8, MASKED=False)
    # The third program's lanes 20 to 23 are in the storage, but not in the tensor.
    assert str(caught.value) == (
        "copy_kernel: load of 4 bytes in program (2, 0, 0), 4 lanes, "
        "the first 0 bytes past the end of src [20] float32"
    )


def test_negative_index_is_caught() -> None:
    src, dst = torch.zeros(64)[32:40], torch.zeros(8)
    indices = torch.tensor([0, 1, 2, 3, -1, 5, 6, 7], dtype=torch.int32)
    with (
        pytest.raises(MemoryFault, match="1 lanes, the first 4 bytes before src"),
        MemoryGuard(src=src),
    ):
        gather_kernel[(1,)](src, indices, dst, BLOCK=8)


@pytest.mark.parametrize("column", [4, 5])
def test_gap_between_rows_is_out_of_range(column: int) -> None:
    rows = torch.zeros(4, 8)[:, :column]
    indices = torch.tensor([0, 8 + column - 1, 24, 8 + column], dtype=torch.int32)
    inside, dst = indices[:2].clone(), torch.zeros(4)
    with MemoryGuard(rows=rows) as guard:
        gather_kernel[(1,)](rows, inside, dst, BLOCK=2)
    assert guard.read_bytes["rows"] == 8
    with (
        pytest.raises(
            MemoryFault, match=f"at byte {(8 + column) * 4}, which is no element, of rows"
        ),
        MemoryGuard(rows=rows),
    ):
        gather_kernel[(1,)](rows, indices, dst, BLOCK=4)


def test_interleaved_views_of_one_storage_are_told_apart() -> None:
    both = torch.randn(4, 2, 8)
    keys, values = both[:, 0], both[:, 1]
    with MemoryGuard(keys=keys, values=values) as guard:
        rows_kernel[(4,)](keys, values, 16, 16, NUM_COLUMNS=8)
    assert torch.equal(keys, values)
    assert guard.read_bytes == {"keys": 4 * 8 * 4}
    assert guard.written_bytes == {"values": 4 * 8 * 4}
    # With a row stride of 8 the second program would read the values of block 0.
    message = r"program \(1, 0, 0\), 8 lanes, the first at byte 32, which is no element, of keys"
    with pytest.raises(MemoryFault, match=message), MemoryGuard(keys=keys):
        rows_kernel[(2,)](keys, torch.zeros(2, 8), 8, 8, NUM_COLUMNS=8)


def test_an_argument_of_an_earlier_launch_is_out_of_range() -> None:
    pair = torch.zeros(16)
    first, second, dst = pair[:8], pair[8:], torch.zeros(16)

    def reach_past_the_first() -> None:
        with MemoryGuard(first=first, second=second):
            copy_kernel[(1,)](first, dst, 8, BLOCK=8, MASKED=True)
            copy_kernel[(1,)](second, dst, 8, BLOCK=8, MASKED=True)
            copy_kernel[(2,)](first, dst, 16, BLOCK=8, MASKED=True)

    with pytest.raises(MemoryFault, match="0 bytes past the end of first"):
        reach_past_the_first()


def test_two_programs_that_write_one_element_are_a_race() -> None:
    src, dst = torch.zeros(8), torch.zeros(32)
    with MemoryGuard(dst=dst) as guard:
        sum_kernel[(3,)](src, dst, STEP=8, BLOCK=8)
    assert guard.written_bytes == {"dst": 96}
    with pytest.raises(MemoryFault) as caught, MemoryGuard(dst=dst):
        sum_kernel[(2,)](src, dst, STEP=7, BLOCK=8)
    assert str(caught.value) == (
        "sum_kernel: race: program (0, 0, 0) writes and program (1, 0, 0) writes "
        "byte 28 of dst [32] float32 in one launch"
    )


def test_reading_what_another_program_writes_is_a_race() -> None:
    values = torch.arange(24.0)
    with (
        pytest.raises(
            MemoryFault, match=r"program \(1, 0, 0\) writes and program \(0, 0, 0\) reads byte 32"
        ),
        MemoryGuard(values=values),
    ):
        shift_kernel[(2,)](values, BLOCK=8)


def test_two_lanes_that_store_to_one_element_are_caught() -> None:
    src, dst = torch.zeros(8), torch.zeros(8)
    message = r"two lanes of one store in program \(0, 0, 0\) write byte 0 of dst"
    with pytest.raises(MemoryFault, match=message), MemoryGuard(dst=dst):
        pairs_kernel[(1,)](src, dst, BLOCK=8)


def test_atomics_count_both_ways_and_are_no_race() -> None:
    total = torch.zeros(1, dtype=torch.int32)
    with MemoryGuard(total=total) as guard:
        atomic_kernel[(3,)](total, BLOCK=4)
    assert total.item() == 12
    assert guard.read_bytes == {"total": 48}
    assert guard.written_bytes == {"total": 48}


def test_after_the_guard_nothing_is_checked_or_counted() -> None:
    src, dst = torch.zeros(8), torch.zeros(8)
    with MemoryGuard() as guard:
        pass
    copy_kernel[(1,)](src, dst, 8, BLOCK=8, MASKED=True)
    assert not guard.read_bytes
