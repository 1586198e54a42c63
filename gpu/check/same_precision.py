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
    """Causal attention of one sequence's last tokens; shapes as in `reference.attention`.

    What matrix instructions are fed and what is stored is of the tensors' dtype: query, K, V, the
    softmax's weights, the output. What they sum up, and the softmax, is fp32.
    """
    num_queries, num_heads, _ = query.shape
    context_len, num_kv_heads, _ = key.shape
    if context_len == 0 or num_queries == 0:
        return torch.zeros_like(query)
    group = num_heads // num_kv_heads
    key = key.repeat_interleave(group, dim=1).transpose(0, 1).float()
    value = value.repeat_interleave(group, dim=1).transpose(0, 1).float()
    scores = torch.matmul(query.transpose(0, 1).float(), key.transpose(1, 2)) * scale
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    tokens = torch.arange(context_len, device=query.device)
    positions = tokens[context_len - num_queries :, None]
    hidden = tokens > positions
    if window:
        hidden |= tokens <= positions - window
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.float().view(-1, 1, 1).expand(-1, num_queries, 1)], dim=2)
    weights = torch.softmax(scores, dim=2)[:, :, :context_len].to(query.dtype)
    return torch.matmul(weights.float(), value).transpose(0, 1).to(query.dtype)
