"""Faults of the kernels that move KV: store, copy, swap."""

from mutant import Mutant

STORE = "kernels/store_kv.py"
COPY = "kernels/copy_blocks.py"
SWAP = "kernels/swap_blocks.py"
ORDER = "arguments/swaps.py"

FAULTS = [
    Mutant("store: 32-bit token", STORE, "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
    Mutant("store: 32-bit head", STORE, "    heads = heads.to(tl.int64)\n", ""),
    Mutant(
        "store: first heads in every program",
        STORE,
        "tl.program_id(1) * HEADS + tl.arange(0, HEADS)",
        "tl.arange(0, HEADS)",
    ),
    Mutant(
        "store: padding overwrites the last slot",
        STORE,
        "slot_id >= 0, NUM_KV_HEADS",
        "slot_id >= -1, NUM_KV_HEADS",
    ),
    Mutant(
        "store: slot 0 is padding", STORE, "slot_id >= 0, NUM_KV_HEADS", "slot_id > 0, NUM_KV_HEADS"
    ),
    Mutant(
        "store: heads behind the last written",
        STORE,
        "slot_id >= 0, NUM_KV_HEADS, 0)",
        "slot_id >= 0, NUM_KV_HEADS + HEADS, 0)",
    ),
    Mutant(
        "store: slot of the first token", STORE, "tl.load(slots_ptr + token)", "tl.load(slots_ptr)"
    ),
    Mutant(
        "store: slot inside the block lost",
        STORE,
        "slot = slot_id % BLOCK_SIZE",
        "slot = slot_id * 0",
    ),
    Mutant("store: value into K", STORE, "store_rows(v_ptr, v_rows", "store_rows(k_ptr, k_rows"),
    Mutant("store: key into V", STORE, "v_rows, writes, value,", "v_rows, writes, key,"),
    Mutant(
        "store: V by the blocks of K", STORE, "block * v_block_stride", "block * k_block_stride"
    ),
    Mutant("store: V by the slots of K", STORE, "slot * v_slot_stride", "slot * k_slot_stride"),
    Mutant("store: V by the heads of K", STORE, "heads * v_head_stride", "heads * k_head_stride"),
    Mutant(
        "store: value by the key's tokens",
        STORE,
        "token * value_token_stride",
        "token * key_token_stride",
    ),
    Mutant(
        "store: value by the key's heads",
        STORE,
        "heads * value_head_stride",
        "heads * key_head_stride",
    ),
    Mutant(
        "copy: other direction",
        COPY,
        "copy_launch(pools, pools, pairs[:, 1], pairs[:, 0],",
        "copy_launch(pools, pools, pairs[:, 0], pairs[:, 1],",
    ),
    Mutant(
        "copy: padding copies block -1",
        COPY,
        "tl.minimum(to_block, from_block) >= 0",
        "tl.minimum(to_block, from_block) >= -1",
    ),
    Mutant(
        "copy: padding on one side copies",
        COPY,
        "tl.minimum(to_block, from_block) >= 0",
        "tl.maximum(to_block, from_block) >= 0",
    ),
    Mutant(
        "copy: block 0 is padding",
        COPY,
        "tl.minimum(to_block, from_block) >= 0",
        "tl.minimum(to_block, from_block) > 0",
    ),
    Mutant("copy: rows behind the block", COPY, ">= 0, NUM_ROWS, 0)", ">= 0, NUM_ROWS + ROWS, 0)"),
    Mutant("copy: last row left out", COPY, ">= 0, NUM_ROWS, 0)", ">= 0, NUM_ROWS - 1, 0)"),
    Mutant("copy: ids not strided", COPY, "to_ids_ptr + pair * ids_stride", "to_ids_ptr + pair"),
    Mutant(
        "copy: slots and heads swapped",
        COPY,
        "slots = (rows // NUM_KV_HEADS)",
        "slots = (rows % NUM_KV_HEADS)",
    ),
    Mutant(
        "copy: 32-bit slot", COPY, "(rows // NUM_KV_HEADS).to(tl.int64)", "rows // NUM_KV_HEADS"
    ),
    Mutant("copy: 32-bit head", COPY, "(rows % NUM_KV_HEADS).to(tl.int64)", "rows % NUM_KV_HEADS"),
    Mutant(
        "copy: first rows in every program",
        COPY,
        "tl.program_id(1) * ROWS + tl.arange(0, ROWS)",
        "tl.arange(0, ROWS)",
    ),
    Mutant(
        "copy: V from the blocks of K",
        COPY,
        "from_block * v_from_block_stride",
        "from_block * k_from_block_stride",
    ),
    Mutant(
        "copy: V to the heads of K", COPY, "heads * v_to_head_stride", "heads * k_to_head_stride"
    ),
    Mutant(
        "copy: V to the slots of K", COPY, "slots * v_to_slot_stride", "slots * k_to_slot_stride"
    ),
    Mutant(
        "copy: K into V",
        COPY,
        "store_rows(v_to_ptr, v_to, is_row, v,",
        "store_rows(v_to_ptr, v_to, is_row, k,",
    ),
    Mutant(
        "swap: other direction",
        SWAP,
        "            if not batch[0].is_out:\n                source",
        "            if batch[0].is_out:\n                source",
    ),
    Mutant(
        "swap: K and V swapped on the host",
        SWAP,
        "(staging[:, 0], staging[:, 1])",
        "(staging[:, 1], staging[:, 0])",
    ),
    Mutant(
        "swap: first host block for all",
        SWAP,
        "host_block : host_block + last - first",
        "batch[0].host_block : batch[0].host_block + last - first",
    ),
    Mutant("swap: a block written twice in one batch", ORDER, " or target in written)", ")"),
    Mutant("swap: both directions in one batch", ORDER, "move.is_out != batch[0].is_out or ", ""),
    Mutant(
        "swap: host blocks taken as consecutive",
        ORDER,
        "if at_end or batch[number].host_block != batch[number - 1].host_block + 1:",
        "if at_end:",
    ),
]
