"""What a vLLM V1 scheduler is told: the fields of its configuration that decide who runs and which block goes where."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm


@dataclass(frozen=True)
class Group:
    """Layers that share one block table of each request. `window` None: full attention."""

    block_size: int  # tokens
    window: int | None = None  # tokens that a position attends to, itself included


@dataclass(frozen=True)
class SchedulerSettings:
    """Named after vLLM's `SchedulerConfig`, `CacheConfig` and `ModelConfig` where it has the field.

    `num_gpu_blocks` includes the null block, number 0, which is never handed out. `prefix_cache_retention_interval`
    is for windows: 0 keeps what ends at places where a later prompt can resume, k > 0 the end of every k tokens, too,
    None everything. `free_to_back`: releases before 0.32 append every freed block to the free queue's back; newer ones
    put what has no reusable content at the front.
    """

    num_gpu_blocks: int
    groups: tuple[Group, ...]
    max_model_len: int
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
    free_to_back: bool = False

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
        """Most tokens that are scheduled and not yet processed: a full batch for each one that may be under way."""
        return (2 if self.async_scheduling else 1) * self.max_num_batched_tokens

    @property
    def hash_block_size(self) -> int:
        """Tokens at whose multiples the identity of a prefix is known."""
        return gcd(*(group.block_size for group in self.groups))

    @property
    def alignment(self) -> int:
        """Tokens of which every prefix hit is a multiple."""
        return lcm(*(group.block_size for group in self.groups))
