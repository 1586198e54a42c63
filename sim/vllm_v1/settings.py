"""What a vLLM V1 scheduler is told: the fields of its configuration that decide who runs and which block goes where."""

from __future__ import annotations

from dataclasses import dataclass

from ..block_groups import in_flight_tokens


@dataclass(frozen=True)
class SchedulerSettings:
    """Named after vLLM's `SchedulerConfig`, `CacheConfig` and `ModelConfig` where it has the field.

    `num_gpu_blocks` includes the null block, number 0, which is never handed out. `windows` has an entry for each
    KV-cache group, layers that share one block table of each request: the tokens that a position attends to, itself
    included, or None for full attention. Blocks are of one size in all groups. `prefix_cache_retention_interval`
    is for windows: 0 keeps what ends at places where a later prompt can resume, k > 0 the end of every k tokens, too,
    None everything.
    """

    num_gpu_blocks: int
    max_model_len: int
    block_size: int = 16  # tokens
    windows: tuple[int | None, ...] = (None,)
    max_num_seqs: int = 256
    max_num_active_seqs: int | None = None  # None: max_num_seqs
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    policy: str = "fcfs"  # or `priority`
    async_scheduling: bool = False
    prefix_cache_retention_interval: int | None = 0

    @property
    def watermark_blocks(self) -> int:
        """Blocks that stay free when somebody is admitted beside others; the null block counts in the share."""
        return int(self.watermark * self.num_gpu_blocks)

    @property
    def max_active(self) -> int:
        """Most requests that run at the same time."""
        return self.max_num_seqs if self.max_num_active_seqs is None else self.max_num_active_seqs

    @property
    def max_in_flight_tokens(self) -> int:
        """Most tokens that are scheduled and not yet processed."""
        return in_flight_tokens(self.max_num_batched_tokens, self.async_scheduling)
