"""Decode against contiguous KV: the kernel of `paged_decode` without a table, to price paging."""

import torch

from ..arguments.operations import check_contiguous
from ..arguments.scores import Scores
from ..arguments.tensors import make_out
from ..arguments.tuning import SplitPlan, Tuning
from .paged_decode import decode_launches, default_split


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
    scores = Scores(scale, window, soft_cap, sinks)
    out = make_out(query, out)
    check_contiguous(query, k, v, context_lens, scores, out, check_lens_fit)
    split = split or default_split(query, k, k.shape[1])
    for launch in decode_launches(
        query, k, v, None, context_lens, scores, split, workspace, out, tuning
    ):
        launch.run()
    return out
