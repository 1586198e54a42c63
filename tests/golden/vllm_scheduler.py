"""vLLM's own scheduler, with a made-up model behind it."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

# Hashes in events as they are, not cut to 64 bits. Read when an event is made.
os.environ["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.config import CacheConfig, KVEventsConfig, SchedulerConfig, VllmConfig
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.structured_output import StructuredOutputManager

SCHEDULER_FIELDS = (
    "max_num_seqs",
    "max_num_active_seqs",
    "max_num_batched_tokens",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "scheduler_reserve_full_isl",
    "watermark",
    "policy",
)


def make_scheduler(config: dict[str, Any]) -> tuple[Scheduler, int]:
    """The real scheduler, and the block size of its hashes."""
    vllm_config = VllmConfig(
        scheduler_config=SchedulerConfig(
            max_model_len=config["max_model_len"],
            is_encoder_decoder=False,
            async_scheduling=False,
            **{name: config[name] for name in SCHEDULER_FIELDS},
        ),
        cache_config=CacheConfig(
            block_size=config["block_size"], enable_prefix_caching=config["enable_prefix_caching"]
        ),
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
    )
    for name in SCHEDULER_FIELDS:  # the platform may have had its own ideas
        setattr(vllm_config.scheduler_config, name, config[name])
    vllm_config.scheduler_config.async_scheduling = config["async_scheduling"]
    vllm_config.cache_config.enable_prefix_caching = config["enable_prefix_caching"]
    vllm_config.cache_config.block_size = config["block_size"]
    vllm_config.cache_config.num_gpu_blocks = config["num_gpu_blocks"]
    vllm_config.model_config = SimpleNamespace(
        max_model_len=config["max_model_len"],
        uses_mrope=False,
        is_encoder_decoder=False,
        is_mm_encoder_only=False,
        is_diffusion=False,
        runner_type="generate",
        supports_multimodal_inputs=False,
        return_sampling_mask=False,
        is_multimodal_model=False,
        multimodal_config=None,
        skip_tokenizer_init=True,
    )
    groups = []
    for number, group in enumerate(config["groups"]):
        shape = {
            "block_size": group.get("block_size", config["block_size"]),
            "num_kv_heads": 1,
            "head_size": 1,
            "dtype": torch.float16,
        }
        if group["type"] == "full":
            spec = FullAttentionSpec(**shape)
        else:
            spec = SlidingWindowSpec(**shape, sliding_window=group["window"])
        groups.append(KVCacheGroupSpec([f"layer{number}"], spec))
    cache_config = KVCacheConfig(
        num_blocks=config["num_gpu_blocks"],
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        prefix_cache_retention_interval=config["prefix_cache_retention_interval"],
    )
    scheduler_size, hash_size = resolve_kv_cache_block_sizes(cache_config, vllm_config)
    scheduler = (AsyncScheduler if config["async_scheduling"] else Scheduler)(
        vllm_config=vllm_config,
        kv_cache_config=cache_config,
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=scheduler_size,
        hash_block_size=hash_size,
    )
    return scheduler, hash_size
