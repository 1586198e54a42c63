"""What vLLM's scheduler would be told for a run."""

from __future__ import annotations

from kvtwin.traces import UserError

from ..plan import Limits
from .policy import VllmV1
from .settings import SchedulerSettings


def scheduler_settings(policy: VllmV1, limits: Limits) -> SchedulerSettings:
    """What vLLM's scheduler would be told. Raises UserError for what vLLM refuses to start with."""
    options = policy.settings
    for flag, value, least, reason in (
        (
            "--max-num-batched-tokens",
            limits.max_num_batched_tokens,
            0 if options.enable_chunked_prefill else options.max_model_len,
            "every prompt must fit into a step, as prompts are not cut into chunks",
        ),
        (
            "--max-model-len",
            options.max_model_len,
            options.long_prefill_token_threshold,
            "no prompt is longer than that, so a --long-prefill-token-threshold above it is a mistake",
        ),
    ):
        if value < least:
            raise UserError(f"{flag} is {value}; it must be at least {least}, because {reason}")
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
