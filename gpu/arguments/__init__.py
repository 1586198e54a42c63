"""What the operations take, and what they refuse; nothing here needs triton."""

from .scores import Scores
from .swaps import SwapMove, allocate_host_pool
from .tuning import SplitPlan, Tuning, plan_splits

__all__ = ["Scores", "SplitPlan", "plan_splits", "Tuning", "SwapMove", "allocate_host_pool"]
