"""A request's sequences: several samples, or the beams of a search, which share what they have in common."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq

from ..prompts import UNKNOWN_PROMPT, Pieces
from ..sequence import NEVER


class Branch:
    """One decoding stream of a request. `blocks` is its block table, on the device or on the host."""

    __slots__ = ("blocks", "branch", "end", "keys", "row")

    def __init__(self, row: int, branch: int, end: int) -> None:
        self.row = row  # number of the request in the trace
        self.branch = branch  # from 0 in its request
        self.end = end  # E = prompt + output - 1: committed tokens when it finishes
        self.blocks: list[int] = []
        self.keys: list[int] | None = (
            None  # under what its full blocks are found, if that was asked
        )


def num_common_blocks(blocks: Seq[int], others: Seq[int]) -> int:
    """Leading blocks that two tables of one length share."""
    for place, (one, other) in enumerate(zip(blocks, others, strict=True)):
        if one != other:
            return place
    return len(blocks)


class Group:
    """A request. Its unfinished branches are scheduled together, so all have the same number of committed tokens.

    Branches that share a block share all blocks before it, too: a fork shares everything, and only the last block of
    a table is ever written.
    """

    __slots__ = (
        "admission",  # number of this stay in the running batch; NEVER if it is not there
        "arrival",  # (ns, row): orders the groups
        "branches",  # the unfinished ones
        "fresh",  # whether it decodes for the first time next: the prompt's last block may be shared
        "is_beam",
        "known",  # prompt plus tokens generated, of each branch, while it does not run
        "last_token_ns",  # when the last tokens came out; NEVER before the first
        "live_slots",  # slots with a committed token, shared ones once, as of decode step `live_step`
        "live_step",
        "num_blocks",  # blocks of the device, shared ones once
        "num_hit_tokens",  # found at its latest admission, until it runs
        "num_prompt_tokens",
        "num_stored",  # leading blocks of each table that others could have found since they were filled
        "offset",  # committed tokens of each branch - number of decode steps, while it runs
        "pieces",  # what the trace says of its prompt, and of the answer behind it
        "row",
        "useful_slots",  # slots of the device below the end of a branch that holds them, shared ones once
    )

    def __init__(
        self,
        row: int,
        arrival_ns: int,
        num_prompt_tokens: int,
        num_output_tokens: Seq[int],
        is_beam: bool,
        pieces: Pieces = UNKNOWN_PROMPT,
    ) -> None:
        self.row = row
        self.pieces = pieces
        self.arrival = arrival_ns, row
        self.num_prompt_tokens = num_prompt_tokens
        self.is_beam = is_beam
        self.branches = [
            Branch(row, number, num_prompt_tokens + num - 1)
            for number, num in enumerate(num_output_tokens)
        ]
        self.known = num_prompt_tokens
        self.fresh = True
        self.last_token_ns = NEVER
        self.admission = NEVER
        self.offset = 0
        self.num_hit_tokens = self.num_stored = 0
        self.num_blocks = self.live_slots = self.live_step = self.useful_slots = 0

    def block_ids(self) -> Iterator[int]:
        """Every block of its tables, once."""
        for branch, place in self.distinct_parts():
            yield from branch.blocks[place:]

    @property
    def num_entries(self) -> int:
        """Entries of all its block tables, which are equally long."""
        return len(self.branches) * len(self.branches[0].blocks)

    def count(self, committed: int, block_size: int) -> tuple[int, int, int]:
        """(blocks, live slots, useful slots) from the tables alone, each block once."""
        ends: dict[int, tuple[int, int]] = {}  # block: (place in its tables, largest end)
        for branch in self.branches:
            for place, block_id in enumerate(branch.blocks):
                before = ends.get(block_id, (place, 0))
                assert before[0] == place, (
                    f"request {self.row} has block {block_id} at places {before[0]} and {place}"
                )
                ends[block_id] = place, max(before[1], branch.end)
        live = useful = 0
        for place, end in ends.values():
            first = place * block_size
            live += min(max(committed - first, 0), block_size)
            useful += min(max(end - first, 0), block_size)
        return len(ends), live, useful

    def distinct_parts(self) -> list[tuple[Branch, int]]:
        """For each branch with blocks that no branch before it has, the place of the first of them."""
        seen: set[int] = set()
        parts = []
        for branch in self.branches:
            for place, block_id in enumerate(branch.blocks):
                if block_id not in seen:
                    parts.append((branch, place))
                    seen.update(branch.blocks[place:])
                    break
        return parts
