"""Kernels that read and write KV through block tables, one file each, with their wrappers."""

from .launch import Launch, is_interpreted
from .merge import merge_partials
from .paged_decode import paged_decode, workspace_elements
from .scores import Scores
from .store_kv import store_kv
from .tuning import SplitPlan, Tuning, plan_splits

__all__ = [
    "paged_decode",
    "store_kv",
    "merge_partials",
    "workspace_elements",
    "SplitPlan",
    "plan_splits",
    "Tuning",
    "Scores",
    "Launch",
    "is_interpreted",
]
