"""Attention over a set of keys from the attention over its parts: the reduce step of split decode."""

import torch
import triton
import triton.language as tl

from ..arguments.operations import check_parts
from ..arguments.tuning import padded
from .attend import LOG2_E, add_sink, load_rows, normalise, store_rows
from .launch import Launch


# Not specialised on how many parts there are: a launch with another number must not compile anew.
@triton.jit(do_not_specialize=["num_parts"])
def merge_kernel(
    out_ptr,
    partials_ptr,
    maxima_ptr,
    sums_ptr,
    sinks_ptr,
    logit_scale,
    partials_token_stride,
    partials_head_stride,
    partials_part_stride,
    out_token_stride,
    out_head_stride,
    num_parts,
    PARTS_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    HAS_SUMS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """One program a token and head. A part weighs sum * exp(logit_scale * largest score).

    An empty part (largest score -inf) is unread. Without sums each is 1: what stands for a largest
    score is a logarithm of the whole weight, and +inf marks an empty part, too, as some write it.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    parts = tl.arange(0, PARTS_PAD)
    is_listed = parts < num_parts
    first_part = (token * tl.num_programs(1) + head) * num_parts
    maxima = tl.load(maxima_ptr + first_part + parts, mask=is_listed, other=float("-inf"))
    if not HAS_SUMS:
        maxima = tl.where(maxima == float("inf"), float("-inf"), maxima)

    largest = tl.max(maxima, axis=0)
    # Nothing at all: -inf - -inf would be NaN.
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    weights = tl.exp2((maxima - shift) * (logit_scale * LOG2_E))
    if HAS_SUMS:
        weights *= tl.load(sums_ptr + first_part + parts, mask=is_listed, other=0.0)

    offsets = token * partials_token_stride + head * partials_head_stride
    is_part = maxima > float("-inf")
    values = load_rows(
        partials_ptr,
        offsets + parts.to(tl.int64) * partials_part_stride,
        is_part,
        HEAD_DIM,
        DIM_PAD,
    )
    # From here on one row of attention's state: see attend.py.
    row_sum = tl.zeros([1], tl.float32) + tl.sum(weights, axis=0)
    acc = tl.sum(values * weights[:, None], axis=0)[None, :]
    if HAS_SINKS:
        row_max = tl.zeros([1], tl.float32) + largest
        sink = tl.load(sinks_ptr + head)
        row_sum, acc = add_sink(row_max, row_sum, acc, sink, logit_scale)
    row = token * out_token_stride + head * out_head_stride + tl.zeros([1], tl.int64)
    store_rows(out_ptr, row, row >= 0, normalise(row_sum, acc), HEAD_DIM, DIM_PAD)


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
    check_parts(partials, lse, sinks, out)
    merge_launch(partials, lse, None, 1.0, sinks, out).run()
    return out


def merge_launch(
    partials: torch.Tensor,
    maxima: torch.Tensor,
    sums: torch.Tensor | None,
    logit_scale: float,
    sinks: torch.Tensor | None,
    out: torch.Tensor,
) -> Launch:
    """Merge parts that were checked, or that decode made itself.

    `maxima`, `sums`: contiguous fp32 [num_tokens, num_heads, num_parts].
    """
    num_tokens, num_heads, num_parts, head_dim = partials.shape
    return Launch(
        merge_kernel,
        (num_tokens, num_heads),
        {
            "out_ptr": out,
            "partials_ptr": partials,
            "maxima_ptr": maxima,
            "sums_ptr": sums,
            "sinks_ptr": sinks,
            "logit_scale": logit_scale,
            "partials_token_stride": partials.stride(0),
            "partials_head_stride": partials.stride(1),
            "partials_part_stride": partials.stride(2),
            "out_token_stride": out.stride(0),
            "out_head_stride": out.stride(1),
            "num_parts": num_parts,
            "PARTS_PAD": padded(num_parts, 1),
            "HEAD_DIM": head_dim,
            "DIM_PAD": padded(head_dim, 16),
            "HAS_SUMS": sums is not None,
            "HAS_SINKS": sinks is not None,
        },
        {"num_warps": 4, "num_stages": 1},
    )
