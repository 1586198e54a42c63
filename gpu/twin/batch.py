"""What one step computes, as arrays: which tokens, into which slots, through which tables."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """Sequences one behind the other; those that compute several tokens come before those with one.

    `ids`: int64 [num_tokens]. `slots`: int64 [num_groups, num_tokens], of each group of layers. `tables`: int32
    [num_groups, num_seqs, max_blocks], what stands behind a sequence's context, or in front of a group's window, is
    never read. `starts`: int32 [num_seqs + 1], where each sequence's tokens begin. `context_lens`: int32 [num_seqs],
    the new tokens included. `num_prefills`: how many sequences compute several tokens.
    """

    ids: Int64
    slots: Int64
    tables: Int32
    starts: Int32
    context_lens: Int32
    num_prefills: int

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens of the sequences in front, those that compute several."""
        return int(self.starts[self.num_prefills])


def make_batch(
    ids: Int64, tables: Int32, firsts: Int64, nums: Int64, block_slots: int, num_prefills: int
) -> Batch:
    """The batch of sequences that compute positions [first, first + num) through their tables.

    `tables` is cut to what the longest context needs. Sequences with several tokens come first.
    """
    starts = np.zeros(len(nums) + 1, dtype=np.int64)
    np.cumsum(nums, out=starts[1:])
    positions = token_positions(firsts, nums, starts)
    owners = np.repeat(np.arange(len(nums)), nums)
    blocks, offsets = np.divmod(positions, block_slots)
    slots = tables[:, owners, blocks].astype(np.int64) * block_slots + offsets
    context_lens = firsts + nums
    width = -(-int(context_lens.max(initial=0)) // block_slots)
    return Batch(
        ids,
        slots,
        np.ascontiguousarray(tables[:, :, :width]),
        starts.astype(np.int32),
        context_lens.astype(np.int32),
        num_prefills,
    )


def token_positions(firsts: Int64, nums: Int64, starts: Int64) -> Int64:
    """Positions of all tokens in their sequences, one sequence behind the other: [num_tokens]."""
    positions: Int64 = np.arange(starts[-1]) + np.repeat(firsts - starts[:-1], nums)
    return positions
