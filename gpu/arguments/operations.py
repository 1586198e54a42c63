"""One check per operation, the same for kernels and torch: everything before anything is written.

Each raises KernelInputError, one line. Contents of integer tensors are read only where the caller
asks for it.
"""

from collections.abc import Sequence
from numbers import Integral

import torch

from ..errors import KernelInputError
from .contents import (
    check_lens_contents,
    check_query_starts,
    check_table_contents,
    first_of_decode,
    first_of_prefill,
)
from .overlaps import check_apart
from .scores import Scores
from .swaps import SwapMove
from .tensors import (
    check_device,
    check_ints,
    check_lens,
    check_memory,
    check_out,
    check_pools,
    check_query,
    check_rows,
    check_same,
    check_sinks,
    check_tables,
)
from .tuning import padded

MAX_TILE_ELEMENTS = 1 << 20  # of one triton tensor


def check_store(
    key: torch.Tensor,
    value: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Arguments of `store_kv`."""
    check_pools(k_pool, v_pool)
    num_kv_heads, head_dim = k_pool.shape[2:]
    check_ints("slot_mapping", slot_mapping, torch.int64, 1, k_pool)
    num_tokens = slot_mapping.shape[0]
    for name, rows in (("key", key), ("value", value)):
        check_rows(name, rows, 3)
        check_same(name, rows, "k_pool", k_pool)
        if rows.shape[1:] != (num_kv_heads, head_dim) or rows.shape[0] < num_tokens:
            raise KernelInputError(
                f"{name} has shape {list(rows.shape)}; it must be "
                f"[{num_tokens} or more, {num_kv_heads}, {head_dim}]"
            )
    read = {"key": key, "value": value, "slot_mapping": slot_mapping}
    check_apart({"k_pool": k_pool, "v_pool": v_pool}, read)


def check_decode(
    query: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scores: Scores,
    out: torch.Tensor,
    check_table: bool,
) -> None:
    """Arguments of `paged_decode`."""
    check_pools(k_pool, v_pool)
    check_query(query, k_pool)
    check_out(out, query)
    scores.check(query.shape[1], query)
    check_tables(block_tables, query.shape[0], k_pool)
    check_lens(context_lens, query.shape[0], k_pool)
    read = {"query": query, "k_pool": k_pool, "v_pool": v_pool, "sinks": scores.sinks}
    read |= {"block_tables": block_tables, "context_lens": context_lens}
    check_apart({"out": out}, read)
    if check_table:
        first_seen = first_of_decode(context_lens, scores.window)
        check_table_contents(block_tables, context_lens, k_pool, first_seen)


def check_contiguous(
    query: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    context_lens: torch.Tensor,
    scores: Scores,
    out: torch.Tensor,
    check_lens_fit: bool,
) -> None:
    """Arguments of `contiguous_decode`."""
    check_pools(k, v, ("k", "v"))
    check_query(query, k, "k")
    check_out(out, query)
    scores.check(query.shape[1], query)
    if k.shape[0] != query.shape[0]:
        raise KernelInputError(f"k has {k.shape[0]} sequences; query has {query.shape[0]}")
    check_lens(context_lens, query.shape[0], k)
    read = {"query": query, "k": k, "v": v, "sinks": scores.sinks, "context_lens": context_lens}
    check_apart({"out": out}, read)
    if check_lens_fit:
        check_lens_contents(context_lens, k.shape[1])


def check_prefill(
    query: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    scores: Scores,
    out: torch.Tensor,
    check_table: bool,
) -> None:
    """Arguments of `paged_prefill`."""
    check_pools(k_pool, v_pool)
    check_query(query, k_pool)
    check_out(out, query)
    scores.check(query.shape[1], query)
    check_tables(block_tables, None, k_pool)
    num_seqs = block_tables.shape[0]
    check_lens(context_lens, num_seqs, k_pool)
    check_ints("query_starts", query_starts, torch.int32, 1, k_pool)
    if query_starts.shape != (num_seqs + 1,):
        raise KernelInputError(
            f"query_starts has shape {list(query_starts.shape)}; it must be [{num_seqs + 1}]"
        )
    read = {"query": query, "k_pool": k_pool, "v_pool": v_pool, "sinks": scores.sinks}
    read |= {"block_tables": block_tables, "context_lens": context_lens}
    check_apart({"out": out}, read | {"query_starts": query_starts})
    if check_table:
        check_query_starts(query_starts, context_lens, query.shape[0])
        first_seen = first_of_prefill(query_starts, context_lens, scores.window)
        check_table_contents(block_tables, context_lens, k_pool, first_seen)


def check_parts(
    partials: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor | None, out: torch.Tensor
) -> None:
    """Arguments of `merge_partials`."""
    check_rows("partials", partials, 4)
    check_rows("lse", lse, 3)
    check_rows("out", out, 3)
    num_tokens, num_heads, num_parts, head_dim = partials.shape
    if partials.dtype != torch.float32 or lse.dtype != torch.float32:
        raise KernelInputError(
            f"partials and lse are {partials.dtype} and {lse.dtype}; they must be torch.float32"
        )
    if num_parts == 0 or lse.shape != partials.shape[:3] or not lse.is_contiguous():
        raise KernelInputError(
            f"lse has shape {list(lse.shape)}; it must be a contiguous {list(partials.shape[:3])} "
            "of at least one part"
        )
    num_elements = padded(num_parts, 1) * padded(head_dim, 16)
    if num_elements > MAX_TILE_ELEMENTS:
        raise KernelInputError(
            f"partials has {num_parts} parts of {head_dim} elements, padded {num_elements:,} at a "
            f"time; that must be {MAX_TILE_ELEMENTS:,} or less: merge fewer parts at once"
        )
    if out.shape != (num_tokens, num_heads, head_dim):
        raise KernelInputError(
            f"out has shape {list(out.shape)}; it must be {[num_tokens, num_heads, head_dim]}"
        )
    check_sinks(sinks, num_heads, partials)
    check_device("lse", lse, partials.device)
    check_device("out", out, partials.device)
    check_apart({"out": out}, {"partials": partials, "lse": lse, "sinks": sinks})


def check_pairs_shape(k_pool: torch.Tensor, v_pool: torch.Tensor, pairs: torch.Tensor) -> None:
    """Arguments of `copy_blocks`."""
    check_pools(k_pool, v_pool)
    check_ints("pairs", pairs, torch.int64, 2, k_pool)
    if pairs.shape[1] != 2:
        raise KernelInputError(f"pairs has shape {list(pairs.shape)}; it must be [num_pairs, 2]")
    check_apart({"k_pool": k_pool, "v_pool": v_pool}, {"pairs": pairs})


def check_moves(
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    host_pool: torch.Tensor,
    moves: Sequence[SwapMove],
) -> None:
    """Arguments of `swap_blocks`."""
    if not isinstance(moves, Sequence):  # what is read once would be empty when it is carried out
        raise KernelInputError(f"moves is {type(moves).__name__}; it must be a list or a tuple")
    check_pools(k_pool, v_pool)
    check_rows("host_pool", host_pool, 5)
    wanted = [2, *k_pool.shape[1:]]
    if list(host_pool.shape[1:]) != wanted or host_pool.dtype != k_pool.dtype:
        raise KernelInputError(
            f"host_pool is {host_pool.dtype} {list(host_pool.shape)}; it must be "
            f"{k_pool.dtype} [num_host_blocks, {', '.join(map(str, wanted))}]"
        )
    if host_pool.is_cuda or not host_pool.is_contiguous():
        raise KernelInputError("host_pool must be contiguous host memory")
    if k_pool.is_cuda and not host_pool.is_pinned():
        raise KernelInputError("host_pool is not pinned; make it with allocate_host_pool")
    check_memory("k_pool", k_pool)
    check_memory("host_pool", host_pool)
    check_apart({"k_pool": k_pool, "v_pool": v_pool, "host_pool": host_pool}, {})
    for number, move in enumerate(moves):
        if not isinstance(move, SwapMove):
            raise KernelInputError(
                f"moves[{number}] is {type(move).__name__}; it must be a SwapMove"
            )
        for name, block, limit in (
            ("device_block", move.device_block, k_pool.shape[0]),
            ("host_block", move.host_block, host_pool.shape[0]),
        ):
            if not isinstance(block, Integral) or not 0 <= block < limit:
                raise KernelInputError(
                    f"moves[{number}].{name} is {block}; it must be an integer from 0 to {limit - 1}"
                )
