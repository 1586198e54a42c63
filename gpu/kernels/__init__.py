"""Kernels that read and write KV through block tables, one file each, with their wrappers."""

from .contiguous_decode import contiguous_decode
from .copy_blocks import copy_blocks
from .launch import Launch, is_interpreted
from .merge import merge_partials
from .paged_decode import paged_decode
from .paged_prefill import paged_prefill
from .store_kv import store_kv
from .swap_blocks import swap_blocks
from .workspace import workspace_elements

__all__ = [
    "store_kv",
    "paged_decode",
    "paged_prefill",
    "contiguous_decode",
    "merge_partials",
    "copy_blocks",
    "swap_blocks",
    "workspace_elements",
    "Launch",
    "is_interpreted",
]
