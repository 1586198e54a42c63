"""Questions about one request: can it be served, what of it can be shared, reload it or recompute it?"""

from dataclasses import dataclass

from ..cost import TOTALS, CostModel
from .accounting import SizedPool


@dataclass(frozen=True)
class Servable:
    """Whether a request of P prompt tokens that asks for at most `max_tokens` can be served.

    `planned_end`: committed tokens at its end, P + output - 1, the output cut to what is left of
    `max_model_len`. `reason` says why not, with both numbers, else it is empty.
    """

    num_prompt_tokens: int
    max_tokens: int
    num_output_tokens: int
    planned_end: int
    num_bytes: int
    reason: str


def servable(
    pool: SizedPool, num_prompt_tokens: int, max_tokens: int, max_model_len: int
) -> Servable:
    """Judge one request by the rules at arrival, against an empty pool."""
    left = max_model_len - num_prompt_tokens
    num_output_tokens = min(max_tokens, max(left, 0))
    end = num_prompt_tokens + max(num_output_tokens, 1) - 1
    reason = ""
    if left < 1:
        reason = (
            f"the prompt of {num_prompt_tokens:,} tokens is not shorter than max_model_len "
            f"({max_model_len:,})"
        )
    elif not pool.fits(end):
        reason = (
            f"it holds {end:,} tokens at its end, {pool.bytes_to_admit(end):,} bytes of KV, and the "
            f"pool has {max(0, pool.usable_bytes):,}"
        )
    return Servable(
        num_prompt_tokens=num_prompt_tokens,
        max_tokens=max_tokens,
        num_output_tokens=num_output_tokens,
        planned_end=end,
        num_bytes=pool.bytes_for(end),
        reason=reason,
    )


def reusable_prefix_tokens(num_shared_tokens: int, block_size: int) -> int:
    """Tokens of a shared prefix that a cache of whole blocks can give to a later request."""
    return num_shared_tokens // block_size * block_size


def reload_s(num_bytes: int, link_bytes_per_s: float) -> float:
    """Seconds to copy a rank's KV from the host; the ranks copy at the same time, each over its own link."""
    return num_bytes / link_bytes_per_s


def recompute_s(cost: CostModel, num_tokens: int, max_num_batched_tokens: int) -> float:
    """Seconds to compute the KV of `num_tokens` anew, alone on the GPU, in chunks of a step's tokens."""
    total_ns = 0
    for start in range(0, num_tokens, max_num_batched_tokens):
        chunk = min(max_num_batched_tokens, num_tokens - start)
        totals = {
            "num_prefill_tokens": chunk,
            # Each of the chunk's tokens attends to all before it and to itself.
            "prefill_pairs": chunk * start + chunk * (chunk + 1) // 2,
            "prefill_context_slots": start + chunk,
        }
        total_ns += cost.step_ns(tuple(totals.get(name, 0) for name in TOTALS))
    return total_ns / 1e9
