"""Attention over a set of keys from the attention over its parts: the reduce step of split decode."""

import torch
import triton
import triton.language as tl

from ..arguments.operations import check_parts
from ..arguments.tuning import padded
from .attend import load_rows, store_rows
from .launch import Launch


# Not specialised on how many parts there are: a launch with another number must not compile anew.
@triton.jit(do_not_specialize=["num_parts"])
def merge_kernel(
    out_ptr,
    partials_ptr,
    lse_ptr,
    sinks_ptr,
    partials_token_stride,
    partials_head_stride,
    partials_part_stride,
    out_token_stride,
    out_head_stride,
    num_parts,
    PARTS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """One program a token and head. An empty part (lse -inf, or +inf as some write it) is unread."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    parts = tl.arange(0, PARTS_PAD)
    lse_row = lse_ptr + (token * tl.num_programs(1) + head) * num_parts
    lse = tl.load(lse_row + parts, mask=parts < num_parts, other=float("-inf"))
    lse = tl.where(lse == float("inf"), float("-inf"), lse)

    largest = tl.max(lse, axis=0)
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + head).to(tl.float32)
        largest = tl.maximum(largest, sink)
    # Nothing at all: -inf - -inf would be NaN.
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    weights = tl.exp(lse - shift)
    total = tl.sum(weights, axis=0)
    if HAS_SINKS:
        total += tl.exp(sink - shift)

    offsets = token * partials_token_stride + head * partials_head_stride
    is_part = lse > float("-inf")
    values = load_rows(
        partials_ptr,
        offsets + parts.to(tl.int64) * partials_part_stride,
        is_part,
        HEAD_DIM,
        DIM_PAD,
    )
    merged = tl.sum(values * weights[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    row = token * out_token_stride + head * out_head_stride + tl.zeros([1], tl.int64)
    store_rows(out_ptr, row, row >= 0, merged[None, :], HEAD_DIM, DIM_PAD)


def merge_partials(
    partials: torch.Tensor,
    lse: torch.Tensor,
    *,
    sinks: torch.Tensor | None = None,
    out: torch.Tensor,
) -> torch.Tensor:
    """Merge attention over parts of the keys into attention over all of them, into `out`.

    `partials`: fp32 [num_tokens, num_heads, num_parts, head_dim], each normalised over its part.
    `lse`: fp32 [num_tokens, num_heads, num_parts], the natural logarithm of each part's sum of
    exponentiated scores; -inf (or +inf) marks an empty part, whose values are not read. Tokens
    whose parts are all empty become 0. `sinks`: [num_heads] natural logits that join the
    denominator. `out`: [num_tokens, num_heads, head_dim].

    Raises KernelInputError where shapes, dtypes or devices do not fit.
    """
    merge_launch(partials, lse, sinks, out).run()
    return out


def merge_launch(
    partials: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor | None, out: torch.Tensor
) -> Launch:
    """The launch behind `merge_partials`."""
    check_parts(partials, lse, sinks, out)
    num_tokens, num_heads, num_parts, head_dim = partials.shape
    return Launch(
        merge_kernel,
        (num_tokens, num_heads),
        {
            "out_ptr": out,
            "partials_ptr": partials,
            "lse_ptr": lse,
            "sinks_ptr": sinks,
            "partials_token_stride": partials.stride(0),
            "partials_head_stride": partials.stride(1),
            "partials_part_stride": partials.stride(2),
            "out_token_stride": out.stride(0),
            "out_head_stride": out.stride(1),
            "num_parts": num_parts,
            "PARTS_PAD": padded(num_parts, 1),
            "HEAD_DIM": head_dim,
            "DIM_PAD": padded(head_dim, 16),
            "HAS_SINKS": sinks is not None,
        },
        {"num_warps": 4, "num_stages": 1},
    )
