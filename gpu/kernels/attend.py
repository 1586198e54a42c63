"""What the attention kernels share: one tile of online softmax, in base 2, and its end.

A key's score is q . k, or tanh(tanh_scale * q . k) with a soft cap; logit_scale times it is its
natural logit. State of a row: the largest score so far (-inf before the first key), the sum of
exp(logit_scale * (score - largest)), and the sum of the V rows weighted alike. Milakov and
Gimelshein (2018). Scores are subtracted before they are scaled: near the largest the difference
is exact, so that weights do not lose digits where scores are large.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_rows(ptr, row_offsets, is_row, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr):
    """[rows, DIM_PAD] elements; 0 where `is_row` is false or behind the head dim.

    A row that is not loaded must be 0, not merely weighted with 0: 0 * NaN is NaN.
    """
    dims = tl.arange(0, DIM_PAD)
    mask = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    return tl.load(ptr + row_offsets[:, None] + dims[None, :], mask=mask, other=0.0)


@triton.jit
def store_rows(ptr, row_offsets, is_row, values, HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr):
    """Write [rows, DIM_PAD] values, rounded to the tensor's type, where `is_row`."""
    dims = tl.arange(0, DIM_PAD)
    mask = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(
        ptr + row_offsets[:, None] + dims[None, :],
        values.to(ptr.dtype.element_ty),
        mask=mask,
    )


@triton.jit
def tanh(x):
    """Hyperbolic tangent to a few units in the last place, which the interpreter lacks.

    2 * sigmoid(2 x) - 1 loses digits where its result is small; there the fifth convergent of the
    continued fraction x / (1 + x^2 / (3 + x^2 / (5 + ...))) is as good as fp32 (Lambert, 1768).
    """
    is_near = tl.abs(x) < 1.0
    square = tl.where(is_near, x * x, 0.0)
    near = x * (945.0 + square * (105.0 + square)) / (945.0 + square * (420.0 + square * 15.0))
    return tl.where(is_near, near, 2.0 * tl.sigmoid(2.0 * x) - 1.0)


@triton.jit
def attend(
    query,
    k,
    v,
    visible,
    row_max,
    row_sum,
    acc,
    tanh_scale,
    logit_scale,
    HAS_SOFT_CAP: tl.constexpr,
):
    """The state after the keys of one tile. `visible`: [1 or rows, tile]."""
    scores = tl.dot(query, tl.trans(k), input_precision="ieee")
    if HAS_SOFT_CAP:
        scores = tanh(tanh_scale * scores)
    scores = tl.where(visible, scores, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    # A row that has seen no key yet: -inf - -inf would be NaN.
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    log2_scale = logit_scale * LOG2_E
    weights = tl.exp2((scores - shift[:, None]) * log2_scale)
    decay = tl.exp2((row_max - shift) * log2_scale)
    row_sum = row_sum * decay + tl.sum(weights, axis=1)
    acc = acc * decay[:, None]
    acc += tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return new_max, row_sum, acc


@triton.jit
def add_sink(row_max, row_sum, acc, sink, logit_scale):
    """The sums with one more key of natural logit `sink` and V = 0: it only joins the denominator."""
    sink = sink.to(tl.float32)
    row_logit = row_max * logit_scale
    largest = tl.maximum(row_logit, sink)
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    decay = tl.exp2((row_logit - shift) * LOG2_E)
    return row_sum * decay + tl.exp2((sink - shift) * LOG2_E), acc * decay[:, None]


@triton.jit
def normalise(row_sum, acc):
    """The attention output; 0 for a row without keys."""
    return acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
