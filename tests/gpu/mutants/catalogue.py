"""All mutants, and the tests that run on each."""

from pathlib import Path

import faults_attention
import faults_copies
import faults_decode
import faults_prefill

ROOT = Path(__file__).parents[3]
MUTANTS = (
    *faults_attention.FAULTS,
    *faults_decode.FAULTS,
    *faults_prefill.FAULTS,
    *faults_copies.FAULTS,
)
# What looks at the results of kernels; offsets of more than 32 bits have tests of their own.
RESULTS = (
    "tests/gpu/test_kernel_matrix.py",
    "tests/gpu/test_extreme_scores.py",
    "tests/gpu/test_large_scores.py",
    "tests/gpu/test_sinks.py",
    "tests/gpu/test_swap_order.py",
)
OFFSETS = ("tests/gpu/test_long_strides.py", "tests/gpu/test_large_pools.py")
# Which operations a file is part of: only their tests run, those of the first before the others.
OPERATIONS = {
    "kernels/attend.py": ("paged_decode", "paged_prefill"),
    "kernels/merge.py": ("merge_partials", "paged_decode"),
    "kernels/paged_decode.py": ("paged_decode", "contiguous_decode"),
    "kernels/workspace.py": ("paged_decode",),
    "kernels/paged_prefill.py": ("paged_prefill",),
    "kernels/store_kv.py": ("store_kv",),
    "kernels/copy_blocks.py": ("copy_blocks", "swap_blocks"),
    "kernels/swap_blocks.py": ("swap_blocks",),
    "arguments/swaps.py": ("swap_blocks",),
}
