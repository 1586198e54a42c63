"""What vLLM's scheduler would be told for a run."""

from __future__ import annotations

from kvtwin.traces import UserError

from ..plan import Limits
from .policy import VllmV1
from .settings import SchedulerSettings


def scheduler_settings(policy: VllmV1, limits: Limits) -> SchedulerSettings:
    """What vLLM's scheduler would be told. Raises UserError for what vLLM refuses to start with."""
    options = policy.settings
    longest, threshold = options.max_model_len, options.long_prefill_token_threshold
    if not options.enable_chunked_prefill and limits.max_num_batched_tokens < longest:
        raise UserError(
            f"--max-num-batched-tokens is {limits.max_num_batched_tokens}; with --no-enable-chunked-prefill it must be "
            f"at least --max-model-len ({longest}), because every prompt must fit into a step"
        )
    if threshold > longest:
        raise UserError(
            f"--long-prefill-token-threshold is {threshold}; it must be at most --max-model-len ({longest}), because "
            "no prompt is longer than that"
        )
    return SchedulerSettings(
        num_gpu_blocks=policy.pool.num_blocks,
        max_model_len=options.max_model_len,
        block_size=options.block_size,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        windows=options.groups.windows,
        enable_prefix_caching=policy.reuses_prefixes,
        enable_chunked_prefill=options.enable_chunked_prefill,
        long_prefill_token_threshold=options.long_prefill_token_threshold,
        scheduler_reserve_full_isl=options.admission == "full",
        watermark=options.watermark,
        policy=options.scheduling_policy,
        async_scheduling=options.async_scheduling,
    )
