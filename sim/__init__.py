"""The memory manager, the scheduler, the engine, and the simulated clock."""

from .assembly import Assembly, assemble, policy_settings
from .block_groups import BlockGroups
from .catalog import GpuSpec, find_gpu, find_model
from .checkpoint import quantize, read_model
from .closed_loop import closed_loop_waits, loop_counts
from .config import RunConfig, read_settings
from .cost import CostModel, CostTerm, load_cost
from .model import ModelSpec, WeightPart
from .policies.base import Allocator
from .policies.policy import Policy, PolicySettings, merge_runs
from .pool import PoolSize, layer_groups, size_pool
from .registry import describe_policies, find_policy, policy_names
from .sequence import Sequence
from .simulate import simulate

__all__ = [
    "Allocator",
    "Assembly",
    "BlockGroups",
    "CostModel",
    "CostTerm",
    "GpuSpec",
    "ModelSpec",
    "Policy",
    "PolicySettings",
    "PoolSize",
    "RunConfig",
    "Sequence",
    "WeightPart",
    "assemble",
    "closed_loop_waits",
    "describe_policies",
    "find_gpu",
    "find_model",
    "find_policy",
    "layer_groups",
    "load_cost",
    "loop_counts",
    "merge_runs",
    "policy_names",
    "policy_settings",
    "quantize",
    "read_model",
    "read_settings",
    "simulate",
    "size_pool",
]
