"""Decode against contiguous KV: the kernel of `paged_decode` without a table, to price paging."""

import torch

from .paged_decode import decode_launches, default_split
from .scores import Scores
from .tuning import SplitPlan, Tuning
from .validate import check_lens, check_pools, fail


def contiguous_decode(
    query: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    context_lens: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    split: SplitPlan | None = None,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    check_lens_fit: bool = False,
    tuning: Tuning | None = None,
) -> torch.Tensor:
    """`paged_decode` where sequence i's KV is row i of `k` and `v`.

    `k`, `v`: [num_seqs, max_context_len, num_kv_heads, head_dim] by any strides. The other arguments
    are those of `paged_decode`. `check_lens_fit`: read the lengths back first, and refuse one that
    is negative or beyond `max_context_len`.

    Returns `out`, of the query's shape and dtype. Raises KernelInputError before any launch.
    """
    num_seqs = query.shape[0]
    if num_seqs:
        check_pools(k, v)
    if k.shape[0] != num_seqs:
        fail(f"k has {k.shape[0]} sequences; query has {num_seqs}")
    check_lens(context_lens, num_seqs, k)
    if check_lens_fit:
        for seq, context_len in enumerate(context_lens.tolist()):
            if not 0 <= context_len <= k.shape[1]:
                fail(f"context_lens[{seq}] is {context_len}; it must be from 0 to {k.shape[1]}")
    scores = Scores(scale, window, soft_cap, sinks)
    if out is None:
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
    split = split or default_split(query, k, k.shape[1])
    for launch in decode_launches(
        query, k, v, None, context_lens, scores, split, workspace, out, tuning
    ):
        launch.run()
    return out
