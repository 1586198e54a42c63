"""A limit of compiled code that is broken is named, whichever it is."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvtwin.gpu import compile_table
from kvtwin.gpu.compile_table import CompiledRow, broken_limits, main, render
from kvtwin.gpu.tools.compile_cases import CompileCase, compile_cases
from kvtwin.gpu.tools.machine_code import MachineCode

GOOD = MachineCode(
    registers=96,
    stack_bytes=0,
    num_spills=0,
    shared_bytes=34_560,
    load_widths={"lens_ptr": {4: 1}, "k_ptr": {16: 8}, "v_ptr": {16: 8}},
    store_widths={"out_ptr": {8: 1}},
    binary_load_widths={16: 16, 4: 1},
    num_dots=2,
    num_matrix_dots=2,
    num_matrix_instructions=32,
)
HALF = CompileCase("paged_decode")


def test_good_code_breaks_nothing() -> None:
    assert broken_limits(HALF, 80, "decode_kernel", GOOD) == []


@pytest.mark.parametrize(
    ("fault", "phrase"),
    [
        ({"num_spills": 3}, "3 spills"),
        ({"stack_bytes": 8}, "8 bytes of stack"),
        ({"shared_bytes": 163 * 1024 + 1}, "166913 bytes of shared memory, 166912 exist"),
        ({"load_widths": {**GOOD.load_widths, "k_ptr": {16: 7, 4: 4}}}, "k_ptr loaded by"),
        ({"load_widths": {"lens_ptr": {4: 1}, "k_ptr": {16: 8}}}, "v_ptr loaded by None"),
        ({"binary_load_widths": {16: 16, 4: 1, 2: 9}}, "loads of [2, 4, 16] bytes, [4, 16] in PTX"),
        ({"num_matrix_dots": 1}, "1 of 2 dots"),
        ({"num_dots": 3}, "2 of 3 dots"),
        ({"num_matrix_instructions": 0}, "no matrix instructions"),
    ],
)
def test_each_fault_is_named(fault: dict[str, Any], phrase: str) -> None:
    broken = broken_limits(HALF, 80, "decode_kernel", replace(GOOD, **fault))
    assert any(phrase in text for text in broken), broken


def test_the_larger_gpu_has_more_shared_memory() -> None:
    code = replace(GOOD, shared_bytes=200 * 1024)
    assert broken_limits(HALF, 80, "decode_kernel", code) != []
    assert broken_limits(HALF, 90, "decode_kernel", code) == []


@pytest.mark.parametrize(
    ("case", "is_held"),
    [
        (HALF, True),
        (replace(HALF, dtype=torch.bfloat16, head_dim=96), True),
        (replace(HALF, dtype=torch.float32), False),
        (replace(HALF, head_dim=256), False),
    ],
)
def test_only_16_bit_types_up_to_head_dim_128_are_held_to_spills(
    case: CompileCase, is_held: bool
) -> None:
    spilled = replace(GOOD, num_spills=3)
    assert bool(broken_limits(case, 80, "decode_kernel", spilled)) == is_held


def test_all_cases_cover_every_axis() -> None:
    cases = list(compile_cases(is_quick=False))
    assert len(set(cases)) == len(cases)
    for operation in ("paged_decode", "paged_prefill"):
        of_operation = [case for case in cases if case.operation == operation]
        assert {case.head_dim for case in of_operation} >= {64, 80, 96, 128, 256}
        assert {case.group for case in of_operation} >= {1, 2, 3, 4, 5, 7, 8, 16}
        assert {case.block_size for case in of_operation} >= {1, 7, 16, 2048}
        assert {case.layout for case in of_operation} == {"NHD", "HND", "interleaved"}
        dtypes = {torch.float16, torch.bfloat16, torch.float32}
        assert {case.dtype for case in of_operation} == dtypes
        for option in ("window", "soft_cap", "has_sinks"):
            assert {bool(getattr(case, option)) for case in of_operation} == {True, False}


def test_quick_cases_are_some_of_all_cases() -> None:
    quick, every = (set(compile_cases(is_quick=is_quick)) for is_quick in (True, False))
    assert quick < every


@pytest.mark.parametrize("out", [".", "none/table.md"])
def test_where_nothing_can_be_written_nothing_is_compiled(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path / out)])
    assert ended.value.code == 2
    (*_, line) = capsys.readouterr().err.splitlines()
    assert line.endswith("must be a file in a folder that exists")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "archs"), [([], [80, 90]), (["--quick", "--arch", "90", "90"], [90])]
)
def test_a_report_of_less_says_so(
    flags: list[str], archs: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which command it is of; nothing is compiled here."""

    def compiled(cases: Any, wanted: Any) -> Iterator[CompiledRow]:
        assert wanted == archs
        yield CompiledRow(HALF, 90, "decode_kernel", GOOD, [])

    monkeypatch.setattr(compile_table, "compiled_rows", compiled)
    out = tmp_path / "table.md"
    assert main([*flags, "--out", str(out)]) == 0
    told = " --quick --arch 90" if flags else ""
    command = f"`.venv/bin/python -m kvtwin.gpu.compile_table{told}`"
    assert out.read_text(encoding="utf-8").splitlines()[2] == command


def test_the_report_counts_and_names_what_is_beyond_a_limit() -> None:
    rows = [
        CompiledRow(HALF, 80, "decode_kernel", GOOD, []),
        CompiledRow(
            replace(HALF, group=7), 90, "decode_kernel", replace(GOOD, num_spills=3), ["3 spills"]
        ),
    ]
    text = render(rows, [80, 90])
    assert "2 compiled, 1 beyond a limit, 1 with spills." in text
    lines = [line for line in text.splitlines() if "decode_kernel" in line]
    assert lines[0] == (
        "| float16, head_dim 128, group 4, block_size 16, NHD | sm_80 | decode_kernel | 96 | 0 | 34,560 | "
        "k 16x8, v 16x8 | lens 4x1 | out 8x1 | 2/2, 32 | yes |"
    )
    assert lines[1].startswith("| group 7 | sm_90 |")
    assert lines[1].endswith("| 3 spills |")
