"""Faults of paged prefill."""

from mutant import Mutant

PREFILL = "kernels/paged_prefill.py"

FAULTS = [
    Mutant("prefill: 32-bit head", PREFILL, "tl.program_id(1).to(tl.int64)", "tl.program_id(1)"),
    Mutant("prefill: 32-bit token", PREFILL, "(start + queries).to(tl.int64)", "start + queries"),
    Mutant(
        "prefill: 32-bit block",
        PREFILL,
        "mask=is_key, other=0).to(tl.int64)",
        "mask=is_key, other=0)",
    ),
    Mutant(
        "prefill: 32-bit slot", PREFILL, "(keys % BLOCK_SIZE).to(tl.int64)", "keys % BLOCK_SIZE"
    ),
    Mutant("prefill: 32-bit table row", PREFILL, "seq.to(tl.int64) * table_row", "seq * table_row"),
    Mutant("prefill: sequence of the tile before", PREFILL, "+ middle > tile", "+ middle >= tile"),
    Mutant(
        "prefill: no room for partly filled tiles",
        PREFILL,
        "// QUERY_TILE + middle > tile",
        "// QUERY_TILE > tile",
    ),
    Mutant(
        "prefill: padding is the last sequence's", PREFILL, "high = num_seqs + 1", "high = num_seqs"
    ),
    Mutant(
        "prefill: starts read behind their end",
        PREFILL,
        "tl.load(starts_ptr + seq + 1, mask=is_seq, other=0)",
        "tl.load(starts_ptr + seq + 1)",
    ),
    Mutant(
        "prefill: lengths read behind their end",
        PREFILL,
        "tl.load(lens_ptr + seq, mask=is_seq, other=0)",
        "tl.load(lens_ptr + seq)",
    ),
    Mutant(
        "prefill: padding not zeroed",
        PREFILL,
        "tl.where(is_seq, end, num_tokens)",
        "tl.where(is_seq, end, start)",
    ),
    Mutant("prefill: tile counted in tokens", PREFILL, "+ seq)) * QUERY_TILE", "+ seq))"),
    Mutant(
        "prefill: rows of the next sequence written",
        PREFILL,
        "(queries < query_len) & (group < GROUP)",
        "group < GROUP",
    ),
    Mutant(
        "prefill: heads behind the group written",
        PREFILL,
        "(queries < query_len) & (group < GROUP)",
        "queries < query_len",
    ),
    Mutant(
        "prefill: mask aligned at the first token",
        PREFILL,
        "positions = num_cached + queries",
        "positions = queries",
    ),
    Mutant(
        "prefill: heads of a KV head interleaved",
        PREFILL,
        "heads = kv_head * GROUP + group",
        "heads = group * tl.num_programs(1) + kv_head",
    ),
    Mutant(
        "prefill: a token does not see itself",
        PREFILL,
        "keys[None, :] <= positions[:, None])",
        "keys[None, :] < positions[:, None])",
    ),
    Mutant(
        "prefill: a token sees the next",
        PREFILL,
        "keys[None, :] <= positions[:, None])",
        "keys[None, :] <= positions[:, None] + 1)",
    ),
    Mutant(
        "prefill: not causal",
        PREFILL,
        "is_key[None, :] & (keys[None, :] <= positions[:, None])",
        "is_key[None, :] & (positions[:, None] >= 0)",
    ),
    Mutant(
        "prefill: window one too wide",
        PREFILL,
        "keys[None, :] > positions[:, None] - window",
        "keys[None, :] >= positions[:, None] - window",
    ),
    Mutant(
        "prefill: window one too narrow",
        PREFILL,
        "keys[None, :] > positions[:, None] - window",
        "keys[None, :] > positions[:, None] - window + 1",
    ),
    Mutant(
        "prefill: window only trims tiles",
        PREFILL,
        "visible & (keys[None, :] > positions[:, None] - window)",
        "visible",
    ),
    Mutant(
        "prefill: first key of the window unread",
        PREFILL,
        "first_query - window + 1, 0)",
        "first_query - window + 2, 0)",
    ),
    Mutant(
        "prefill: a key in front of the window read",
        PREFILL,
        "first_query - window + 1, 0)",
        "first_query - window, 0)",
    ),
    Mutant(
        "prefill: window reaches in front of the sequence",
        PREFILL,
        "tl.maximum(num_cached + first_query - window + 1, 0)",
        "num_cached + first_query - window + 1",
    ),
    Mutant(
        "prefill: keys of the whole prompt",
        PREFILL,
        "tl.minimum(num_cached + first_query + QUERY_TILE, context_len)",
        "context_len",
    ),
    Mutant(
        "prefill: keys behind the context",
        PREFILL,
        "tl.minimum(num_cached + first_query + QUERY_TILE, context_len)",
        "num_cached + first_query + QUERY_TILE",
    ),
    Mutant(
        "prefill: empty tiles read keys",
        PREFILL,
        "    key_end = tl.where(first_query < query_len, key_end, 0)\n",
        "",
    ),
    Mutant(
        "prefill: last key unread",
        PREFILL,
        "is_key = keys < key_end",
        "is_key = keys < key_end - 1",
    ),
    Mutant(
        "prefill: last tile not masked",
        PREFILL,
        "is_key = keys < key_end",
        "is_key = keys < tile_begin + TILE",
    ),
    Mutant(
        "prefill: table of the first sequence",
        PREFILL,
        "tables_ptr + seq_row + keys",
        "tables_ptr + keys",
    ),
    Mutant(
        "prefill: table counted from the tile",
        PREFILL,
        "keys // BLOCK_SIZE\n",
        "(keys - key_begin) // BLOCK_SIZE\n",
    ),
    Mutant(
        "prefill: table read behind its end",
        PREFILL,
        "tl.load(entries, mask=is_key, other=0)",
        "tl.load(entries)",
    ),
    Mutant(
        "prefill: V by the blocks of K",
        PREFILL,
        "blocks * v_block_stride",
        "blocks * k_block_stride",
    ),
    Mutant(
        "prefill: V by the slots of K", PREFILL, "slots * v_slot_stride", "slots * k_slot_stride"
    ),
    Mutant(
        "prefill: V by the heads of K",
        PREFILL,
        "kv_head * v_head_stride",
        "kv_head * k_head_stride",
    ),
    Mutant(
        "prefill: sinks of the first heads",
        PREFILL,
        "tl.load(sinks_ptr + heads",
        "tl.load(sinks_ptr + group",
    ),
    Mutant(
        "prefill: query by the output's tokens",
        PREFILL,
        "tokens_in * query_token_stride",
        "tokens_in * out_token_stride",
    ),
    Mutant(
        "prefill: output by the query's heads",
        PREFILL,
        "heads * out_head_stride",
        "heads * query_head_stride",
    ),
]
