"""Bugs of other projects that only a compiler shows, each named by its source."""

import json

from compiling_process import run_compiling

# KiB of shared memory that a block may use, where it is least: CUDA C++ programming guide.
SM_86_SHARED_KIB = 99

SHARED = """
import json
import torch
from kvtwin.gpu.arguments import SplitPlan
from kvtwin.gpu.kernels import paged_decode, paged_prefill
from kvtwin.gpu.tools.fake_driver import compile_only
found = []
half, full = torch.float16, torch.float32
sizes = [(256, 8, half), (512, 4, half), (576, 16, half), (128, 128, half)]
for head_dim, group, dtype in [*sizes, (128, 4, full), (256, 8, full)]:
    pool = torch.zeros(2, 16, 1, head_dim, dtype=dtype)
    query = torch.zeros(2, group, head_dim, dtype=dtype)
    table, lens, starts = torch.zeros(2, 2).int(), torch.zeros(2).int(), torch.zeros(3).int()
    with compile_only(86) as launches:
        paged_decode(query, pool, pool, table, lens, scale=0.1, split=SplitPlan(1))
        paged_prefill(query, pool, pool, table, starts, lens, scale=0.1)
    for launch in launches:
        shared = launch.compiled.metadata.shared
        found.append([head_dim, group, str(dtype), launch.kernel_name, shared])
print(json.dumps(found))
"""


def test_large_heads_fit_the_shared_memory() -> None:
    """sgl-project/sglang PR#1819; vllm-project/vllm PR#39018; ROCm/vllm PR#919 (K48): tiles that do
    not shrink where a head, a group of heads, or an element, grows."""
    found = json.loads(run_compiling("-c", SHARED))
    assert len(found) == 6 * 2
    for *configuration, shared in found:
        assert shared <= SM_86_SHARED_KIB << 10, (configuration, shared)


ONES = """
import torch
from kvtwin.gpu.arguments import SplitPlan
from kvtwin.gpu.kernels import copy_blocks, paged_decode, paged_prefill, store_kv
from kvtwin.gpu.tools.fake_driver import compile_only
k_pool, v_pool, query = torch.zeros(3, 1, 1, 1, 1, dtype=torch.float16)
row, one, two = query[0], torch.ones(1).int(), torch.zeros(2).int()
options = {"scale": 1.0, "window": 1, "soft_cap": 1.0, "sinks": torch.zeros(1)}
with compile_only(90) as launches:
    store_kv(row, row, k_pool, v_pool, one.long())
    copy_blocks(k_pool, v_pool, torch.ones(1, 2).long())
    for num_splits in (1, 2):
        split = SplitPlan(num_splits, 1)
        paged_decode(row, k_pool, v_pool, one[None], one, split=split, **options)
    paged_prefill(row, k_pool, v_pool, one[None], two, one, **options)
print([launch.kernel_name for launch in launches])
"""


def test_sizes_and_strides_of_one_compile() -> None:
    """Integers that are 1 become constants in a launch, which have no `.to()` as tensors do."""
    assert run_compiling("-c", ONES).strip() == str(
        [
            "store_kv_kernel",
            "copy_blocks_kernel",
            "decode_kernel",
            "decode_kernel",
            "merge_kernel",
            "prefill_kernel",
        ]
    )


VARIANTS = """
import json
import torch
from kvtwin.gpu.arguments import plan_splits
from kvtwin.gpu.kernels import paged_decode, paged_prefill, store_kv
from kvtwin.gpu.tools.fake_driver import compile_only
pool, v_pool = torch.zeros(2, 300, 16, 2, 64, dtype=torch.float16)
with compile_only(90) as launches:
    for num_seqs in (1, 3, 16):
        query = torch.zeros(num_seqs, 4, 64, dtype=torch.float16)
        lens, starts = torch.zeros(num_seqs).int(), torch.zeros(num_seqs + 1).int()
        rows = torch.zeros(num_seqs, 2, 64, dtype=torch.float16)
        store_kv(rows, rows, pool, v_pool, lens.long())
        for max_len in (1, 15, 16, 17, 1000, 4096):
            table = torch.zeros(num_seqs, -(-max_len // 16)).int()
            for multiprocessors in (1, 20, 132):
                split = plan_splits(num_seqs * max_len, max_len, 2, multiprocessors)
                for window in (0, max_len):
                    paged_decode(
                        query, pool, pool, table, lens, scale=0.1, split=split, window=window
                    )
            paged_prefill(query, pool, pool, table, starts, lens, scale=0.1)
variants = {}
for launch in launches:
    variants.setdefault(launch.kernel_name, set()).add(launch.compiled.hash)
print(json.dumps({name: len(hashes) for name, hashes in variants.items()}))
"""


def test_numbers_that_change_do_not_compile_anew() -> None:
    """sgl-project/sglang #38787; vllm-ascend PR#13637; flash-attention PR#911 (K83): batch sizes and
    lengths compiled into kernels, in the serving loop.

    Decode: split or not, with a window or without. Merge: parts up to a power of two.
    """
    num_variants = json.loads(run_compiling("-c", VARIANTS))
    assert num_variants["store_kv_kernel"] == 1
    assert num_variants["prefill_kernel"] == 1
    assert num_variants["decode_kernel"] == 4
    assert 1 <= num_variants["merge_kernel"] <= 7
