"""Merging parts of attention against float64: parts of very different weight, and empty ones."""

from types import ModuleType

import numpy as np
import torch

from .case import Case
from .inputs import NAN
from .tolerance import row_tolerances, worst_row

NUM_TOKENS = 6


def make_parts(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 parts and natural lse; a third is empty (-inf, or +inf), and holds NaN."""
    generator = torch.Generator().manual_seed(3)
    shape = (NUM_TOKENS, case.num_heads, case.num_splits)
    parts = torch.randn(*shape, case.head_dim, generator=generator)
    lse = 5.0 * torch.randn(shape, generator=generator)
    chance = torch.rand(shape, generator=generator)
    lse[chance < 0.35] = -torch.inf
    lse[chance < 0.1] = torch.inf
    lse[0] = -torch.inf  # a token without any key
    lse[1, :, 0] = -1e30  # a part of finite, hopeless scores
    parts[is_empty_part(lse)] = NAN
    return parts, lse


def is_empty_part(lse: torch.Tensor) -> torch.Tensor:
    """Both conventions of an empty part."""
    return lse.isinf()


def run_merge(case: Case, ops: ModuleType, device: str) -> tuple[float, float]:
    """Error and tolerance of the worst token; NaN if any element of the output is."""
    parts, lse = make_parts(case)
    sinks = torch.randn(case.num_heads, generator=torch.Generator().manual_seed(4))
    out = torch.full(
        (NUM_TOKENS, case.num_heads, case.head_dim), NAN, dtype=case.torch_dtype, device=device
    )
    ops.merge_partials(
        parts.to(device), lse.to(device), sinks=sinks.to(device) if case.sinks else None, out=out
    )
    exact = np.zeros(out.shape)
    single = torch.zeros(out.shape, dtype=case.torch_dtype)
    for token in range(NUM_TOKENS):
        for head in range(case.num_heads):
            row = lse[token, head]
            kept = ~is_empty_part(row)
            if not kept.any():
                continue
            logits = torch.cat([row[kept], sinks[head : head + 1] if case.sinks else row[:0]])
            values = parts[token, head, kept]
            doubles = logits.double().numpy()
            weights = np.exp(doubles - doubles.max())
            weights = weights[: len(values)] / weights.sum()
            exact[token, head] = weights @ values.double().numpy()
            single[token, head] = (torch.softmax(logits, 0)[: len(values)] @ values).to(out.dtype)
    reference = torch.from_numpy(exact)
    errors = (out.cpu().double() - reference).abs().amax((1, 2))
    return worst_row(errors, row_tolerances(single.double(), reference, out.dtype))
