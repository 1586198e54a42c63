"""Call an attention operation on a case's inputs, and compare with float64."""

from types import ModuleType
from typing import Any

import torch

from ..arguments import SplitPlan, Tuning
from ..arguments.tuning import decode_tuning, padded, prefill_tuning
from .case import Case
from .inputs import NAN, Inputs, make_inputs
from .tolerance import expected, worst_row


def run_attention(case: Case, ops: ModuleType, device: str) -> tuple[float, float]:
    """Error and tolerance of the worst row of a decode or a prefill; NaN if any element is."""
    inputs = make_inputs(case, device)
    reference, tolerances = expected(case, inputs)
    out = torch.full_like(inputs.query, NAN)
    returned = attention_with(case, ops, inputs, out)
    assert returned is out, "the output given is the one returned"
    distance = (out.cpu().double() - reference).abs()
    return worst_row(distance.amax((1, 2)), tolerances)


def attention_with(
    case: Case, ops: ModuleType, inputs: Inputs, out: torch.Tensor, **changed: Any
) -> torch.Tensor:
    """Call the case's operation on `inputs`; `changed` replaces arguments by name."""
    options: dict[str, Any] = {
        "scale": case.scale,
        "window": case.window,
        "soft_cap": case.soft_cap,
        "sinks": inputs.sinks,
        "tuning": tuning_of(case),
        "out": out,
    }
    if case.kernel == "paged_prefill":
        arguments: dict[str, Any] = {
            "query": inputs.query,
            "k_pool": inputs.k_pool,
            "v_pool": inputs.v_pool,
            "block_tables": inputs.block_tables,
            "query_starts": inputs.query_starts,
            "context_lens": inputs.context_lens,
            "check_table": True,
        }
        return ops.paged_prefill(**arguments | options | changed)
    options["split"] = SplitPlan(case.num_splits, case.min_split_tokens)
    if case.num_splits > 1:
        # More than is needed at any head dim, and nothing in it but poison.
        num_elements = 3 * inputs.query.numel() * case.num_splits + 7
        options["workspace"] = torch.full((num_elements,), NAN, device=inputs.query.device)
    if case.kernel == "contiguous_decode":
        k, v = contiguous(case, inputs)
        arguments = {"query": inputs.query, "k": k, "v": v, "context_lens": inputs.context_lens}
        return ops.contiguous_decode(**arguments | options | {"check_lens_fit": True} | changed)
    arguments = {
        "query": inputs.query,
        "k_pool": inputs.k_pool,
        "v_pool": inputs.v_pool,
        "block_tables": inputs.block_tables,
        "context_lens": inputs.context_lens,
        "check_table": True,
    }
    return ops.paged_decode(**arguments | options | changed)


def contiguous(case: Case, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V [num_seqs, longest context + 1, ...], NaN behind each context."""
    lens = case.context_lens
    shape = (len(lens), max(lens) + 1, case.num_kv_heads, case.head_dim)
    k = torch.full(shape, NAN, dtype=case.torch_dtype, device=inputs.query.device)
    v = k.clone()
    for seq, context_len in enumerate(lens):
        k[seq, :context_len] = inputs.keys[seq].to(k.device)
        v[seq, :context_len] = inputs.values[seq].to(v.device)
    return k, v


def tuning_of(case: Case) -> Tuning:
    """The case's tile, small ones for small cases; or what the kernel chooses itself."""
    own = prefill_tuning if case.kernel == "paged_prefill" else decode_tuning
    if case.tile_tokens == 0:
        return own(case.head_dim, case.torch_dtype)
    # Prefill tiles of several tokens, or programs would be too many to interpret.
    query_rows = max(16, 4 * padded(case.group, 1))
    return Tuning(case.tile_tokens, num_warps=4, num_stages=2, query_rows=query_rows)
