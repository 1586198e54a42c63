"""Kernels that read and write KV through block tables, one file each, with their wrappers."""

from .contiguous_decode import contiguous_decode
from .copy_blocks import copy_blocks
from .launch import Launch, is_interpreted
from .merge import merge_partials
from .paged_decode import paged_decode, workspace_elements
from .paged_prefill import paged_prefill
from .scores import Scores
from .store_kv import store_kv
from .swap_blocks import SwapMove, allocate_host_pool, swap_blocks
from .tuning import SplitPlan, Tuning, plan_splits

__all__ = [
    "store_kv",
    "paged_decode",
    "paged_prefill",
    "contiguous_decode",
    "merge_partials",
    "copy_blocks",
    "swap_blocks",
    "SwapMove",
    "allocate_host_pool",
    "workspace_elements",
    "SplitPlan",
    "plan_splits",
    "Tuning",
    "Scores",
    "Launch",
    "is_interpreted",
]
