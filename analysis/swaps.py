"""What was copied between the device and the host, where anything was."""

from collections.abc import Mapping, Sequence
from typing import Any

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
