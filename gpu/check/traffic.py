"""The traffic model's bytes of a case, by the names of the kernels' arguments."""

from collections import Counter

from kvtwin.sim.traffic import (
    PART_ELEMENT_BYTES,
    SINK_BYTES,
    SLOT_BYTES,
    AttentionShape,
    Traffic,
    decode_traffic,
    prefill_traffic,
    store_traffic,
)

from ..arguments.tuning import Tuning, padded
from .case import Case
from .exact import COPIED_PAIRS, MOVES, PADDING_PAIRS
from .merging import NUM_TOKENS, is_empty_part, make_parts

# Tables that say which sequence a prefill tile belongs to: not part of the model.
LOOK_UPS = {"paged_prefill": {"starts", "lens"}}


def traffic_of(case: Case, tuning: Tuning) -> Traffic:
    """Bytes that the kernels of `case` read and write."""
    shape = AttentionShape(
        case.num_heads,
        case.num_kv_heads,
        case.head_dim,
        case.torch_dtype.itemsize,
        None if case.kernel == "contiguous_decode" else case.block_size,
        case.window,
        case.sinks,
    )
    if case.kernel == "paged_prefill":
        return prefill_traffic(
            (*case.query_lens, case.num_padding),
            (*case.context_lens, 0),
            shape,
            tile_tokens=tuning.tile_tokens,
            query_tile_tokens=max(1, tuning.query_rows // padded(case.group, 1)),
        )
    if case.kernel == "store_kv":
        heads = min(padded(case.num_kv_heads, 1), 4096 // padded(case.head_dim, 1))
        return store_traffic(
            sum(case.context_lens),
            case.num_padding,
            shape,
            programs_per_token=-(-case.num_kv_heads // heads),
        )
    if case.kernel == "merge_partials":
        return _merge_traffic(case)
    if case.kernel in ("copy_blocks", "swap_blocks"):
        return _copy_traffic(case, shape)
    return decode_traffic(
        case.context_lens,
        shape,
        tile_tokens=tuning.tile_tokens,
        num_splits=case.num_splits,
        min_split_tokens=case.min_split_tokens,
    )


def _merge_traffic(case: Case) -> Traffic:
    _, lse = make_parts(case)
    num_results = NUM_TOKENS * case.num_heads
    num_values = int((~is_empty_part(lse)).sum()) * case.head_dim
    read = Counter(
        partials=num_values * PART_ELEMENT_BYTES,
        maxima=lse.numel() * PART_ELEMENT_BYTES,
        sinks=num_results * SINK_BYTES * case.sinks,
    )
    return Traffic(+read, Counter(out=num_results * case.head_dim * case.torch_dtype.itemsize))


def _copy_traffic(case: Case, shape: AttentionShape) -> Traffic:
    """Copies inside the pool read and write the same tensors; swaps have the pool on one side."""
    half = case.block_size * shape.kv_row_bytes
    row_elements = padded(case.head_dim, 1)
    num_rows = case.block_size * case.num_kv_heads
    num_programs = -(-num_rows // min(padded(num_rows, 1), 4096 // row_elements))
    id_bytes = num_programs * SLOT_BYTES
    if case.kernel == "copy_blocks":
        num_pairs = len(COPIED_PAIRS)
        listed = num_pairs + len(PADDING_PAIRS)
        copied = Counter(k_to=num_pairs * half, v_to=num_pairs * half)
        return Traffic(
            copied + Counter(to_ids=listed * id_bytes, from_ids=listed * id_bytes), copied
        )
    num_out = sum(move.is_out for move in MOVES)
    num_in = len(MOVES) - num_out
    read = Counter(
        k_from=len(MOVES) * half,
        v_from=len(MOVES) * half,
        from_ids=num_out * id_bytes,
        to_ids=num_in * id_bytes,
    )
    return Traffic(read, Counter(k_to=len(MOVES) * half, v_to=len(MOVES) * half))
