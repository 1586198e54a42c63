"""Kernels compiled without a GPU: specialised as in a launch, not run, and read correctly."""

import json
from pathlib import Path
from typing import Any

import pytest
from compiling_process import run_compiling

from kvtwin.gpu.tools.fake_driver import compile_only

pytestmark = pytest.mark.xdist_group("compiled")
ARCHS = ["80", "90"]


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    """What compile_tiny.py prints, from a process that compiles."""
    return json.loads(run_compiling(str(Path(__file__).with_name("compile_tiny.py"))))


@pytest.mark.parametrize("arch", ARCHS)
def test_a_launch_keeps_its_name_grid_and_target(compiled: dict[str, Any], arch: str) -> None:
    launch = compiled[arch]["copy aligned"]
    assert (launch["kernel_name"], launch["grid"]) == ("copy_kernel", [1])
    assert str(launch["target"]) == arch


@pytest.mark.parametrize("arch", ARCHS)
def test_pointers_are_specialised_by_their_alignment(compiled: dict[str, Any], arch: str) -> None:
    # 1,024 elements of 2 bytes over 128 threads: one load of 16 bytes, or 8 of 2 bytes.
    aligned, misaligned = compiled[arch]["copy aligned"], compiled[arch]["copy misaligned"]
    assert aligned["load_widths"] == {"src": {"16": 1}}
    assert aligned["store_widths"] == {"dst": {"16": 1}}
    assert misaligned["load_widths"] == {"src": {"2": 8}}
    assert (aligned["binary_load_widths"], misaligned["binary_load_widths"]) == (
        {"16": 1},
        {"2": 8},
    )


@pytest.mark.parametrize("arch", ARCHS)
def test_matrix_instructions_are_told_from_others(compiled: dict[str, Any], arch: str) -> None:
    half, single = compiled[arch]["dot fp16"], compiled[arch]["dot fp32"]
    assert (half["num_dots"], half["num_matrix_dots"]) == (1, 1)
    # 64x64x64 in 4 warps: HMMA.16816 does 16x8x16, so 128 / 4; HGMMA does 64x64x16 by all warps.
    assert half["num_matrix_instructions"] == {"80": 32, "90": 4}[arch]
    assert (single["num_dots"], single["num_matrix_dots"]) == (1, 0)
    assert single["num_matrix_instructions"] == 0


@pytest.mark.parametrize("arch", ARCHS)
def test_loads_in_helpers_go_to_the_pointer_of_the_kernel(
    compiled: dict[str, Any], arch: str
) -> None:
    loads = compiled[arch]["nested"]["load_widths"]
    assert loads == {"x_ptr": {"16": 2}, "y_ptr": {"16": 1}, "flags_ptr": {"1": 8}}


@pytest.mark.parametrize("arch", ARCHS)
def test_spills_are_counted(compiled: dict[str, Any], arch: str) -> None:
    spilled, kept = compiled[arch]["spill"], compiled[arch]["crowded"]
    assert spilled["registers"] <= 32
    assert spilled["num_spills"] > 0
    assert spilled["stack_bytes"] > 0
    assert (kept["num_spills"], kept["stack_bytes"]) == (0, 0)
    assert 64 < kept["registers"] <= 255


@pytest.mark.parametrize("arch", ARCHS)
def test_shared_memory_is_what_a_launch_asks_for(compiled: dict[str, Any], arch: str) -> None:
    # Both operands of the dot: 2 x 64 x 64 x 2 bytes.
    assert compiled[arch]["dot fp16"]["shared_bytes"] == 16_384


def test_an_interpreting_process_is_refused() -> None:
    with pytest.raises(RuntimeError, match="compile without TRITON_INTERPRET"), compile_only(90):
        pass
