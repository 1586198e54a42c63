"""Attention of a few rows as plain torch in fp32: what the torch operations share."""

import torch

from .arguments import Scores

# Of a group: beyond this many rows nothing is gained, and shorter rows are computed as if as long
# as the longest.
MAX_GROUP_SEQS = 8
LEAST_FILL = 0.9


def rows_of_like_length(context_lens: torch.Tensor) -> list[torch.Tensor]:
    """Row numbers in groups of like length, the longest first."""
    order = torch.argsort(context_lens, descending=True, stable=True)
    lens = context_lens[order].tolist()
    groups, first = [], 0
    for number, context_len in enumerate(lens):
        if number - first == MAX_GROUP_SEQS or context_len < LEAST_FILL * lens[first]:
            groups.append(order[first:number])
            first = number
    return [*groups, order[first:]] if lens else groups


def decode_rows(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    lens: torch.Tensor,
    scores: Scores,
) -> torch.Tensor:
    """One token a row: query [rows, num_heads, head_dim], keys [rows, tokens, num_kv_heads, ...].

    `keys` and `values` are copies of the caller's, which this function may change.
    """
    num_rows, num_heads, head_dim = query.shape
    hidden = positions >= lens[:, None]
    if scores.window:
        hidden |= positions < (lens - scores.window)[:, None]
    keys, values = keys.float(), values.float()
    # Slots that nobody has written may hold NaN, which no weight of 0 removes. They are few.
    rows_hidden = hidden.flatten().nonzero().squeeze(1)
    for rows in (keys, values):
        rows.flatten(0, 1).index_fill_(0, rows_hidden, 0.0)
    # The heads of a group stand where the tokens of a query would.
    grouped = query.float().view(num_rows, keys.shape[2], -1, head_dim)
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    if scores.soft_cap or scores.sinks is not None:
        result = attend(
            grouped[:, :, :, None],
            keys[:, :, None],
            values[:, :, None],
            hidden[:, None, None, None],
            scores,
        )
    else:
        result = torch.nn.functional.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=~hidden[:, None, None], scale=scores.scale
        )
        result = result.masked_fill((lens == 0).view(-1, 1, 1, 1), 0.0)
    return result.reshape(num_rows, num_heads, head_dim).to(query.dtype)


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    hidden: torch.Tensor,
    scores: Scores,
) -> torch.Tensor:
    """Attention in fp32: query [..., KV heads, group, queries, dim], keys [..., KV heads, 1, ...]."""
    products = torch.matmul(query, keys.transpose(-1, -2)) * scores.scale
    if scores.soft_cap:
        products = scores.soft_cap * torch.tanh(products / scores.soft_cap)
    products = products.masked_fill(hidden, -torch.inf)
    num_keys = keys.shape[-2]
    if scores.sinks is not None:
        column = scores.sinks.float().view(*query.shape[-4:-2], 1, 1)
        products = torch.cat([products, column.expand(*products.shape[:-1], 1)], dim=-1)
    weights = softmax(products)[..., :num_keys]
    return torch.matmul(weights, values)


def softmax(logits: torch.Tensor) -> torch.Tensor:
    """Softmax of the last dimension; all 0 where all logits are -inf."""
    is_empty = (logits == -torch.inf).all(-1, keepdim=True)
    return torch.softmax(logits, -1).masked_fill(is_empty, 0.0)
