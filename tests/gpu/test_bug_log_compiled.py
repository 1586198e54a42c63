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
for head_dim, group in ((256, 8), (512, 4), (576, 16), (128, 128)):
    pool = torch.zeros(2, 16, 1, head_dim, dtype=torch.float16)
    query = torch.zeros(2, group, head_dim, dtype=torch.float16)
    table, lens, starts = torch.zeros(2, 2).int(), torch.zeros(2).int(), torch.zeros(3).int()
    with compile_only(86) as launches:
        paged_decode(query, pool, pool, table, lens, scale=0.1, split=SplitPlan(1))
        paged_prefill(query, pool, pool, table, starts, lens, scale=0.1)
    for launch in launches:
        shared = launch.compiled.metadata.shared
        found.append([head_dim, group, launch.kernel_name, shared])
print(json.dumps(found))
"""


def test_large_heads_fit_the_shared_memory() -> None:
    """sgl-project/sglang PR#1819; vllm-project/vllm PR#39018; ROCm/vllm PR#919 (K48): tiles that do
    not shrink where a head, or a group of heads, grows."""
    found = json.loads(run_compiling("-c", SHARED))
    assert len(found) == 4 * 2
    for head_dim, group, name, shared in found:
        assert shared <= SM_86_SHARED_KIB << 10, (head_dim, group, name, shared)


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
