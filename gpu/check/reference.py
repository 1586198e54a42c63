"""Attention in float64, written for being read: one query token, one head, one softmax at a time.

It shares nothing with the kernels: it sees each sequence's own K and V, in order, and no blocks.
"""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: Array | None = None,
) -> Array:
    """Causal attention of the last tokens of one sequence.

    `query`: [num_queries, num_heads, head_dim], the tokens at the end of the sequence. `key`,
    `value`: [context_len, num_kv_heads, head_dim]. `sinks`: [num_heads]. Returns the shape of
    `query`; a token that sees no key gets 0.
    """
    num_queries, num_heads, _ = query.shape
    context_len, num_kv_heads, _ = key.shape
    out = np.zeros_like(query)
    for row in range(num_queries):
        position = context_len - num_queries + row
        oldest = position - window + 1 if window else 0
        seen = [token for token in range(context_len) if oldest <= token <= position]
        for head in range(num_heads):
            if not seen:
                continue
            kv_head = head * num_kv_heads // num_heads
            scores = scale * key[seen, kv_head] @ query[row, head]
            if soft_cap:
                scores = soft_cap * np.tanh(scores / soft_cap)
            largest = scores.max() if sinks is None else max(scores.max(), sinks[head])
            weights = np.exp(scores - largest)
            total = weights.sum() + (0.0 if sinks is None else np.exp(sinks[head] - largest))
            out[row, head] = weights @ value[seen, kv_head] / total
    return out
