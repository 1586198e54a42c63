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
    Mutant("scores: no scale", SHARED, ") * score_scale\n", ")\n"),
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
        "        scores = soft_cap_log2 * tanh(scores)\n"
        '    scores = tl.where(visible, scores, float("-inf"))\n',
        '        scores = soft_cap_log2 * tanh(tl.where(visible, scores, float("-inf")))\n'
        '    else:\n        scores = tl.where(visible, scores, float("-inf"))\n',
    ),
    Mutant("soft cap: not scaled back", SHARED, "soft_cap_log2 * tanh(scores)", "tanh(scores)"),
    Mutant("soft cap: none", SHARED, "soft_cap_log2 * tanh(scores)", "soft_cap_log2 * scores"),
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
        'shift = tl.where(new_max == float("-inf"), 0.0, new_max)\n    weights',
        "shift = new_max\n    weights",
    ),
    Mutant("softmax: sum does not decay", SHARED, "row_sum * decay + tl.sum", "row_sum + tl.sum"),
    Mutant("softmax: output does not decay", SHARED, "    acc = acc * decay[:, None]\n", ""),
    Mutant(
        "sinks: natural logit taken as base 2",
        SHARED,
        ".to(tl.float32) * LOG2_E",
        ".to(tl.float32)",
    ),
    Mutant(
        "sinks: not in the denominator",
        SHARED,
        "row_sum * decay + tl.exp2(sink_log2 - shift)",
        "row_sum * decay",
    ),
    Mutant("sinks: output does not decay", SHARED, "shift), acc * decay[:, None]", "shift), acc"),
    Mutant(
        "sinks: no larger than the scores",
        SHARED,
        "tl.maximum(row_max, sink_log2)",
        "tl.maximum(row_max, tl.minimum(sink_log2, 0.0))",
        why_equivalent="the largest logit scales both sides of the fraction alike. Only a sink more than 128 above "
        "every score (base 2) overflows without it, which makes the output 0; it is less than 2^-127 of V with it.",
    ),
    Mutant(
        "sinks: no guard for a row without keys and a sink of -inf",
        SHARED,
        'shift = tl.where(new_max == float("-inf"), 0.0, new_max)\n    decay',
        "shift = new_max\n    decay",
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
        "merge: lse of another head", MERGE, "(token * tl.num_programs(1) + head)", "(token + head)"
    ),
    Mutant(
        "merge: lse read behind the last part",
        MERGE,
        'mask=parts < num_parts, other=float("-inf")',
        'mask=parts < PARTS_PAD, other=float("-inf")',
    ),
    Mutant(
        "merge: +inf is not an empty part",
        MERGE,
        '    lse = tl.where(lse == float("inf"), float("-inf"), lse)\n',
        "",
    ),
    Mutant(
        "merge: no guard for no part at all",
        MERGE,
        'tl.where(largest == float("-inf"), 0.0, largest)',
        "largest",
    ),
    Mutant("merge: base 2", MERGE, "weights = tl.exp(lse", "weights = tl.exp2(lse"),
    Mutant("merge: sinks ignored", MERGE, "total += tl.exp(sink - shift)", "total += 0.0"),
    Mutant("merge: sink of another head", MERGE, "tl.load(sinks_ptr + head)", "tl.load(sinks_ptr)"),
    Mutant(
        "merge: empty parts are read",
        MERGE,
        'is_part = lse > float("-inf")',
        "is_part = parts < num_parts",
    ),
    Mutant("merge: parts of another head", MERGE, "+ head * partials_head_stride", "+ head"),
    Mutant("merge: parts of another token", MERGE, "token * partials_token_stride +", "token +"),
    Mutant(
        "merge: no guard for a sum of 0",
        MERGE,
        "tl.where(total == 0.0, 1.0, total)",
        "total",
    ),
    Mutant("merge: output of another head", MERGE, "+ head * out_head_stride", "+ head"),
]
