"""Faults of what the attention kernels share, and of the merge of their parts."""

from mutant import Mutant

SHARED = "kernels/attend.py"
MERGE = "kernels/merge.py"

_MASK = "mask = is_row[:, None] & (dims < HEAD_DIM)[None, :]\n"
_LOAD = "    return tl.load(ptr"
_STORE = "    tl.store(\n        ptr"

FAULTS = [
    Mutant(
        "load: columns behind the head dim",
        SHARED,
        _MASK + _LOAD,
        "mask = is_row[:, None] & (dims < DIM_PAD)[None, :]\n" + _LOAD,
    ),
    Mutant(
        "load: rows that are nobody's",
        SHARED,
        _MASK + _LOAD,
        "mask = (is_row | (row_offsets >= 0))[:, None] & (dims < HEAD_DIM)[None, :]\n" + _LOAD,
    ),
    Mutant(
        "load: rows not loaded are NaN, and weighted with 0",
        SHARED,
        "mask=mask, other=0.0)",
        'mask=mask, other=float("nan"))',
    ),
    Mutant(
        "store: columns behind the head dim",
        SHARED,
        _MASK + _STORE,
        "mask = is_row[:, None] & (dims < DIM_PAD)[None, :]\n" + _STORE,
    ),
    Mutant(
        "store: rows that are nobody's",
        SHARED,
        _MASK + _STORE,
        "mask = (is_row | (row_offsets >= 0))[:, None] & (dims < HEAD_DIM)[None, :]\n" + _STORE,
    ),
    Mutant("scores: no scale", SHARED, "log2_scale = logit_scale * LOG2_E", "log2_scale = LOG2_E"),
    Mutant(
        "scores: natural logarithms taken as base 2",
        SHARED,
        "log2_scale = logit_scale * LOG2_E",
        "log2_scale = logit_scale",
    ),
    Mutant(
        "scores: scaled before they are subtracted",
        SHARED,
        "tl.exp2((scores - shift[:, None]) * log2_scale)",
        "tl.exp2(scores * log2_scale - (shift * log2_scale)[:, None])",
    ),
    Mutant(
        "scores: earlier sums decay without the scale",
        SHARED,
        "tl.exp2((row_max - shift) * log2_scale)",
        "tl.exp2(row_max - shift)",
    ),
    Mutant(
        "scores: products in tf32",
        SHARED,
        'tl.trans(k), input_precision="ieee")',
        'tl.trans(k), input_precision="tf32")',
    ),
    Mutant(
        "output: products in tf32",
        SHARED,
        'v, input_precision="ieee")',
        'v, input_precision="tf32")',
    ),
    Mutant(
        "soft cap: after the mask, which it undoes",
        SHARED,
        "        scores = tanh(tanh_scale * scores)\n"
        '    scores = tl.where(visible, scores, float("-inf"))\n',
        '        scores = tanh(tanh_scale * tl.where(visible, scores, float("-inf")))\n'
        '    else:\n        scores = tl.where(visible, scores, float("-inf"))\n',
    ),
    Mutant("soft cap: not scaled", SHARED, "tanh(tanh_scale * scores)", "tanh(scores)"),
    Mutant("soft cap: none", SHARED, "tanh(tanh_scale * scores)", "tanh_scale * scores"),
    Mutant("tanh: wrong for large scores", SHARED, "2.0 * tl.sigmoid(2.0 * x) - 1.0)", "near)"),
    Mutant("tanh: wrong for small scores", SHARED, "square * (105.0", "square * (100.0"),
    Mutant(
        "mask: keys that are not visible count",
        SHARED,
        'tl.where(visible, scores, float("-inf"))',
        "tl.where(visible, scores, 0.0)",
    ),
    Mutant(
        "softmax: largest score of this tile only",
        SHARED,
        "tl.maximum(row_max, tl.max(scores, axis=1))",
        "tl.max(scores, axis=1)",
    ),
    Mutant(
        "softmax: no guard for rows without a key yet",
        SHARED,
        'shift = tl.where(new_max == float("-inf"), 0.0, new_max)\n    log2',
        "shift = new_max\n    log2",
    ),
    Mutant("softmax: sum does not decay", SHARED, "row_sum * decay + tl.sum", "row_sum + tl.sum"),
    Mutant("softmax: output does not decay", SHARED, "    acc = acc * decay[:, None]\n", ""),
    Mutant(
        "sinks: natural logit taken as base 2",
        SHARED,
        "tl.exp2((sink - shift) * LOG2_E)",
        "tl.exp2(sink - shift)",
    ),
    Mutant(
        "sinks: rounded to the type they came in",
        SHARED,
        "    sink = sink.to(tl.float32)\n    row_logit = row_max * logit_scale\n",
        "    row_logit = (row_max * logit_scale).to(sink.dtype).to(tl.float32)\n"
        "    sink = sink.to(tl.float32)\n",
    ),
    Mutant(
        "sinks: scores not scaled beside them",
        SHARED,
        "row_logit = row_max * logit_scale",
        "row_logit = row_max",
    ),
    Mutant(
        "sinks: not in the denominator",
        SHARED,
        "row_sum * decay + tl.exp2((sink - shift) * LOG2_E)",
        "row_sum * decay",
    ),
    Mutant("sinks: output does not decay", SHARED, "LOG2_E), acc * decay[:, None]", "LOG2_E), acc"),
    Mutant(
        "sinks: no larger than the scores",
        SHARED,
        "tl.maximum(row_logit, sink)",
        "tl.maximum(row_logit, tl.minimum(sink, 0.0))",
        why_equivalent="the largest logit scales both sides of the fraction alike. Only a sink more than 128 above "
        "every logit (base 2) overflows without it, which makes the output 0; it is less than 2^-127 of V with it.",
    ),
    Mutant(
        "sinks: no guard for a row without keys and a sink of -inf",
        SHARED,
        'shift = tl.where(largest == float("-inf"), 0.0, largest)\n    decay',
        "shift = largest\n    decay",
    ),
    Mutant(
        "end: no guard for rows without keys",
        SHARED,
        "tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]",
        "row_sum[:, None]",
    ),
    Mutant(
        "merge: 32-bit token",
        MERGE,
        "token = tl.program_id(0).to(tl.int64)",
        "token = tl.program_id(0)",
    ),
    Mutant(
        "merge: 32-bit head",
        MERGE,
        "head = tl.program_id(1).to(tl.int64)",
        "head = tl.program_id(1)",
    ),
    Mutant(
        "merge: 32-bit part",
        MERGE,
        "parts.to(tl.int64) * partials_part_stride",
        "parts * partials_part_stride",
    ),
    Mutant(
        "merge: weights of another head",
        MERGE,
        "(token * tl.num_programs(1) + head)",
        "(token + head)",
    ),
    Mutant(
        "merge: largest scores read behind the last part",
        MERGE,
        'mask=is_listed, other=float("-inf")',
        'mask=parts < PARTS_PAD, other=float("-inf")',
    ),
    Mutant(
        "merge: sums read behind the last part",
        MERGE,
        "mask=is_listed, other=0.0",
        "mask=parts < PARTS_PAD, other=0.0",
    ),
    Mutant(
        "merge: parts weigh alike whatever their sums",
        MERGE,
        "        weights *= tl.load(sums_ptr",
        "        weights *= 0 * tl.load(sums_ptr",
    ),
    Mutant(
        "merge: parts weighed without the scale",
        MERGE,
        "(logit_scale * LOG2_E)",
        "LOG2_E",
    ),
    Mutant(
        "merge: +inf is not an empty part",
        MERGE,
        '        maxima = tl.where(maxima == float("inf"), float("-inf"), maxima)\n',
        "        maxima = maxima\n",
    ),
    Mutant(
        "merge: a part beyond fp32 is an empty one",
        MERGE,
        "    if not HAS_SUMS:\n        maxima",
        "    if True:\n        maxima",
        why_equivalent="a part whose largest score is infinite has the weight exp2(inf - inf) in its sum: NaN. The "
        "weight 0 of an empty part times that sum is NaN, too, and so is the output.",
    ),
    Mutant(
        "merge: no guard for no part at all",
        MERGE,
        'tl.where(largest == float("-inf"), 0.0, largest)',
        "largest",
    ),
    Mutant("merge: base 2", MERGE, "(logit_scale * LOG2_E)", "logit_scale"),
    Mutant("merge: sinks ignored", MERGE, "row_sum, acc = add_sink", "_row_sum, _acc = add_sink"),
    Mutant("merge: sink of another head", MERGE, "tl.load(sinks_ptr + head)", "tl.load(sinks_ptr)"),
    Mutant(
        "merge: empty parts are read",
        MERGE,
        'is_part = maxima > float("-inf")',
        "is_part = is_listed",
    ),
    Mutant("merge: parts of another head", MERGE, "+ head * partials_head_stride", "+ head"),
    Mutant("merge: parts of another token", MERGE, "token * partials_token_stride +", "token +"),
    Mutant("merge: output of another head", MERGE, "+ head * out_head_stride", "+ head"),
]
