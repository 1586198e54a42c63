"""The same attention as plain torch operations in the kernel's own precision: a yardstick of error."""

import torch


def torch_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of one sequence's last tokens, every step rounded to the tensors' dtype.

    Shapes as in `reference.attention`.
    """
    num_queries, num_heads, _ = query.shape
    context_len, num_kv_heads, _ = key.shape
    if context_len == 0 or num_queries == 0:
        return torch.zeros_like(query)
    group = num_heads // num_kv_heads
    key = key.repeat_interleave(group, dim=1).transpose(0, 1)
    value = value.repeat_interleave(group, dim=1).transpose(0, 1)
    scores = torch.matmul(query.transpose(0, 1), key.transpose(1, 2)) * scale
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    tokens = torch.arange(context_len, device=query.device)
    positions = tokens[context_len - num_queries :, None]
    hidden = tokens > positions
    if window:
        hidden |= tokens <= positions - window
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        column = sinks.to(scores.dtype).view(-1, 1, 1).expand(-1, num_queries, 1)
        scores = torch.cat([scores, column], dim=2)
    weights = torch.softmax(scores, dim=2)[:, :, :context_len]
    return torch.matmul(weights, value).transpose(0, 1)
