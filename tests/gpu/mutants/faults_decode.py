"""Faults of paged and contiguous decode."""

from mutant import Mutant

DECODE = "kernels/paged_decode.py"
WORKSPACE = "kernels/workspace.py"

FAULTS = [
    Mutant("decode: 32-bit sequence", DECODE, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
    Mutant("decode: 32-bit head", DECODE, "tl.program_id(1).to(tl.int64)", "tl.program_id(1)"),
    Mutant(
        "decode: 32-bit block",
        DECODE,
        "mask=is_token, other=0).to(tl.int64)",
        "mask=is_token, other=0)",
    ),
    Mutant(
        "decode: 32-bit slot", DECODE, "(tokens % BLOCK_SIZE).to(tl.int64)", "tokens % BLOCK_SIZE"
    ),
    Mutant(
        "decode: window one too wide",
        DECODE,
        "context_len - window, 0)",
        "context_len - window - 1, 0)",
    ),
    Mutant(
        "decode: window one too narrow",
        DECODE,
        "context_len - window, 0)",
        "context_len - window + 1, 0)",
    ),
    Mutant(
        "decode: window larger than the context",
        DECODE,
        "tl.maximum(context_len - window, 0)",
        "context_len - window",
    ),
    Mutant(
        "decode: splits are no whole tiles",
        DECODE,
        "    split_tokens = tl.cdiv(split_tokens, TILE) * TILE\n",
        "",
    ),
    Mutant(
        "decode: smallest split ignored",
        DECODE,
        "tl.maximum(tl.cdiv(context_len - first, num_splits), min_split_tokens)",
        "tl.maximum(tl.cdiv(context_len - first, num_splits), 1)",
    ),
    Mutant(
        "decode: splits rounded down",
        DECODE,
        "tl.cdiv(context_len - first, num_splits)",
        "(context_len - first) // num_splits",
    ),
    Mutant(
        "decode: splits begin at 0 despite a window",
        DECODE,
        "begin = first + split",
        "begin = split",
    ),
    Mutant(
        "decode: last split reads on",
        DECODE,
        "tl.minimum(begin + split_tokens, context_len)",
        "begin + split_tokens",
    ),
    Mutant(
        "decode: first split reads everything",
        DECODE,
        "tl.minimum(begin + split_tokens, context_len)",
        "context_len",
    ),
    Mutant(
        "decode: heads of a KV head interleaved",
        DECODE,
        "heads = kv_head * GROUP + group",
        "heads = group * tl.num_programs(1) + kv_head",
    ),
    Mutant(
        "decode: group padded in memory",
        DECODE,
        "heads = kv_head * GROUP + group",
        "heads = kv_head * GROUP_PAD + group",
    ),
    Mutant(
        "decode: heads behind the group written",
        DECODE,
        "is_head = group < GROUP",
        "is_head = group < GROUP_PAD",
    ),
    Mutant(
        "decode: query read by empty splits",
        DECODE,
        "reads = group < tl.where(begin < end, GROUP, 0)",
        "reads = is_head",
    ),
    Mutant(
        "decode: one token too many", DECODE, "is_token = tokens < end", "is_token = tokens <= end"
    ),
    Mutant(
        "decode: last tile not masked",
        DECODE,
        "is_token = tokens < end",
        "is_token = tokens < tile_begin + TILE",
    ),
    Mutant("decode: table of the first sequence", DECODE, "seq * table_row_stride + ", ""),
    Mutant(
        "decode: table counted from the window",
        DECODE,
        "tokens // BLOCK_SIZE\n",
        "(tokens - first) // BLOCK_SIZE\n",
    ),
    Mutant(
        "decode: entry of the tile's first token",
        DECODE,
        "tokens // BLOCK_SIZE\n",
        "(tokens * 0 + tile_begin) // BLOCK_SIZE\n",
    ),
    Mutant(
        "decode: table read behind its end",
        DECODE,
        "tl.load(entries, mask=is_token, other=0)",
        "tl.load(entries)",
    ),
    Mutant(
        "decode: slot of the tile",
        DECODE,
        "(tokens % BLOCK_SIZE)",
        "((tokens - tile_begin) % BLOCK_SIZE)",
    ),
    Mutant(
        "decode: V by the blocks of K", DECODE, "blocks * v_block_stride", "blocks * k_block_stride"
    ),
    Mutant("decode: V by the slots of K", DECODE, "slots * v_slot_stride", "slots * k_slot_stride"),
    Mutant(
        "decode: V by the heads of K", DECODE, "kv_head * v_head_stride", "kv_head * k_head_stride"
    ),
    Mutant("decode: V of the first head", DECODE, " + kv_head * v_head_stride", ""),
    Mutant(
        "decode: K in the place of V", DECODE, "load_rows(v_ptr, v_rows", "load_rows(k_ptr, k_rows"
    ),
    Mutant(
        "contiguous: first sequence's KV",
        DECODE,
        "tl.zeros([TILE], tl.int64) + seq",
        "tl.zeros([TILE], tl.int64)",
    ),
    Mutant(
        "decode: parts overwrite each other",
        DECODE,
        "num_splits + split\n",
        "num_splits\n",
    ),
    Mutant(
        "decode: parts without sequence",
        DECODE,
        "(seq * tl.num_programs(1) * GROUP + heads)",
        "heads",
    ),
    Mutant(
        "decode: a logarithm of the whole denominator for its two parts",
        DECODE,
        "        tl.store(maxima_ptr + parts, row_max, mask=is_head)\n"
        "        tl.store(sums_ptr + parts, row_sum, mask=is_head)\n",
        "        log2_scale = logit_scale * 1.4426950408889634\n"
        "        row_max += tl.log2(tl.where(row_sum == 0.0, 1.0, row_sum)) / log2_scale\n"
        "        tl.store(maxima_ptr + parts, row_max, mask=is_head)\n"
        "        tl.store(sums_ptr + parts, tl.minimum(row_sum, 1.0), mask=is_head)\n",
    ),
    Mutant(
        "decode: largest scores where the parts are",
        WORKSPACE,
        "workspace[num_parts * head_dim :]",
        "workspace[: 2 * num_parts]",
    ),
    Mutant("decode: sums of splits lost", DECODE, "parts, row_sum, mask", "parts, row_max, mask"),
    Mutant(
        "decode: largest scores behind the group written",
        DECODE,
        "row_max, mask=is_head)",
        "row_max)",
    ),
    Mutant("decode: sums behind the group written", DECODE, "row_sum, mask=is_head)", "row_sum)"),
    Mutant(
        "decode: empty splits written",
        DECODE,
        "parts * HEAD_DIM, reads, out",
        "parts * HEAD_DIM, is_head, out",
    ),
    Mutant(
        "decode: parts not normalised",
        DECODE,
        "        out = normalise(row_sum, acc)\n        store_rows(partials_ptr",
        "        out = acc\n        store_rows(partials_ptr",
    ),
    Mutant(
        "decode: sinks of the first heads",
        DECODE,
        "tl.load(sinks_ptr + heads",
        "tl.load(sinks_ptr + group",
    ),
    Mutant(
        "decode: sinks behind the group read",
        DECODE,
        "sinks_ptr + heads, mask=is_head, other=0.0)",
        "sinks_ptr + heads)",
    ),
    Mutant(
        "decode: query by the output's tokens",
        DECODE,
        "seq * query_token_stride",
        "seq * out_token_stride",
    ),
    Mutant(
        "decode: query by the output's heads",
        DECODE,
        "heads * query_head_stride",
        "heads * out_head_stride",
    ),
    Mutant(
        "decode: output by the query's tokens",
        DECODE,
        "seq * out_token_stride",
        "seq * query_token_stride",
    ),
    Mutant(
        "decode: sinks dropped when split",
        DECODE,
        "scores.logit_scale, scores.sinks, out)",
        "scores.logit_scale, None, out)",
    ),
]
