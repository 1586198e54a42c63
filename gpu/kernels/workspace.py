"""Where split decode keeps its parts until they are merged."""

from collections.abc import Mapping

import torch

from ..arguments.overlaps import check_apart
from ..arguments.tensors import check_tensor
from ..arguments.tuning import SplitPlan
from ..errors import KernelInputError


def workspace_elements(num_seqs: int, num_heads: int, head_dim: int, split: SplitPlan) -> int:
    """fp32 elements that split decode needs for its parts; 0 if nothing is split."""
    return num_seqs * num_heads * split.num_splits * (head_dim + 2) if split.num_splits > 1 else 0


def parts_in(
    workspace: torch.Tensor | None,
    query: torch.Tensor,
    split: SplitPlan,
    others: Mapping[str, torch.Tensor | None],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Views of the workspace: partial outputs, their largest scores, and their denominators.

    `others`: the tensors of the call, by name. Raises KernelInputError if the workspace is not a
    contiguous row of enough fp32 elements apart from all of them; None: it is allocated.
    """
    num_seqs, num_heads, head_dim = query.shape
    wanted = workspace_elements(num_seqs, num_heads, head_dim, split)
    if workspace is None:
        workspace = torch.empty(wanted, dtype=torch.float32, device=query.device)
    check_tensor("workspace", workspace)
    if workspace.dtype != torch.float32 or workspace.device != query.device:
        raise KernelInputError(
            f"workspace is {workspace.dtype} on {workspace.device}; "
            f"it must be torch.float32 on {query.device}"
        )
    if workspace.dim() != 1 or workspace.numel() < wanted or not workspace.is_contiguous():
        raise KernelInputError(
            f"workspace has shape {list(workspace.shape)}; it must be a contiguous [{wanted}] or more"
        )
    workspace = workspace[:wanted]
    check_apart({"workspace": workspace}, others)
    num_parts = num_seqs * num_heads * split.num_splits
    shape = (num_seqs, num_heads, split.num_splits)
    partials = workspace[: num_parts * head_dim].view(*shape, head_dim)
    maxima, sums = workspace[num_parts * head_dim :].view(2, *shape)
    return partials, maxima, sums
