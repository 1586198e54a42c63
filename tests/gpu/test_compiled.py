"""The code that kernels compile to for sm_80 and sm_90 keeps within its limits.

Compiled in a process of its own; test_compile_limits.py shows that a broken limit is noticed.
"""

import json
from typing import Any

import pytest
from compiling_process import run_compiling

pytestmark = pytest.mark.xdist_group("compiled")
ARCHS = [80, 90]
KERNELS = {
    "paged_decode": {"decode_kernel", "merge_kernel"},
    "paged_prefill": {"prefill_kernel"},
    "contiguous_decode": {"decode_kernel", "merge_kernel"},
    "store_kv": {"store_kv_kernel"},
    "copy_blocks": {"copy_blocks_kernel"},
    "swap_blocks": {"copy_blocks_kernel"},
}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Every kernel in a few configurations, for both archs."""
    command = ("-m", "kvtwin.gpu.compile_table", "--quick", "--json")
    # Exit code 1: a limit is broken, and the tests below say which.
    return json.loads(run_compiling(*command, exit_codes=(0, 1)))["rows"]


def of_attention(rows: list[dict[str, Any]], arch: int) -> list[dict[str, Any]]:
    """Rows of the kernels that multiply, for one arch."""
    return [
        row
        for row in rows
        if row["arch"] == arch and row["kernel_name"] in ("decode_kernel", "prefill_kernel")
    ]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("operation", KERNELS)
def test_every_kernel_compiles(rows: list[dict[str, Any]], operation: str, arch: int) -> None:
    of_operation = [r for r in rows if r["case"]["operation"] == operation and r["arch"] == arch]
    assert {row["kernel_name"] for row in of_operation} == KERNELS[operation]


@pytest.mark.parametrize("arch", ARCHS)
def test_nothing_is_beyond_a_limit(rows: list[dict[str, Any]], arch: int) -> None:
    broken = [(r["kernel_name"], r["name"], r["broken_limits"]) for r in rows if r["arch"] == arch]
    assert [row for row in broken if row[2]] == []


@pytest.mark.parametrize("arch", ARCHS)
def test_16_bit_kernels_up_to_head_dim_128_do_not_spill(
    rows: list[dict[str, Any]], arch: int
) -> None:
    held = [r for r in rows if r["arch"] == arch and r["case"]["head_dim"] <= 128]
    assert {row["case"]["dtype"] for row in held} == {"float16", "bfloat16"}
    assert [r["name"] for r in held if r["code"]["num_spills"] or r["code"]["stack_bytes"]] == []


@pytest.mark.parametrize("arch", ARCHS)
def test_k_and_v_are_read_16_bytes_at_a_time(rows: list[dict[str, Any]], arch: int) -> None:
    for row in of_attention(rows, arch):
        loads = row["code"]["load_widths"]
        assert set(loads["k_ptr"]) == set(loads["v_ptr"]) == {"16"}, row["name"]
        # Most bytes are K and V: the binary has as many wide loads as they need.
        num_wide = sum(loads["k_ptr"].values()) + sum(loads["v_ptr"].values())
        assert row["code"]["binary_load_widths"]["16"] >= num_wide, row["name"]


@pytest.mark.parametrize("arch", ARCHS)
def test_every_dot_is_made_of_matrix_instructions(rows: list[dict[str, Any]], arch: int) -> None:
    for row in of_attention(rows, arch):
        code = row["code"]
        # Scores and output: two dots a tile.
        assert (code["num_dots"], code["num_matrix_dots"]) == (2, 2), row["name"]
        assert code["num_matrix_instructions"] >= 2, row["name"]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kernel_name", ["decode_kernel", "prefill_kernel"])
def test_shared_memory_does_not_depend_on_the_block_size(
    rows: list[dict[str, Any]], arch: int, kernel_name: str
) -> None:
    """vllm-project/vllm PR#38502 (K50): a tile of a whole block of 2,048 slots needs 262 KB."""
    by_block_size = {
        row["case"]["block_size"]: row["code"]["shared_bytes"]
        for row in of_attention(rows, arch)
        if row["kernel_name"] == kernel_name
        and row["case"]["operation"] != "contiguous_decode"
        and row["case"] == {**row["case"], "dtype": "float16", "head_dim": 128, "group": 4}
    }
    assert set(by_block_size) == {1, 16, 2048}
    assert len(set(by_block_size.values())) == 1, by_block_size
