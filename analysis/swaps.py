"""What was copied between the device and the host, where anything was."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvtwin.sim import RunConfig

from .verdict_clauses import percent

HEADINGS = ("groups swapped out", "blocks swapped out and in", "swapped out and in, GiB")


def any_swapped(summaries: Sequence[Mapping[str, Any]]) -> bool:
    """Whether there is anything to show."""
    return any(s["swapping"]["num_groups_out"] for s in summaries if "swapping" in s)


def swap_cells(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """A cell for each of HEADINGS, GiB of one GPU; dashes for a policy that never swaps."""
    if "swapping" not in summary:
        return ("-",) * len(HEADINGS)
    swapping = summary["swapping"]
    return (
        f"{swapping['num_groups_out']:,}",
        f"{swapping['num_blocks_out_and_in']:,}",
        f"{swapping['num_bytes_out_and_in'] / 2**30:,.2f}",
    )


def swap_notes(config: RunConfig, summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why nothing was swapped by those that would have, where swapping is asked for."""
    mode = config.preemption_mode
    if mode == "recompute" or (mode == "auto" and config.swap_space == RunConfig.swap_space):
        return []
    return [
        f"nothing was swapped by {s['policy']}: nobody was preempted (at most {percent(s['peak_used_share'])} of the "
        "pool was in use)"
        for s in summaries
        if "swapping" in s and not s["preemptions"]
    ]
