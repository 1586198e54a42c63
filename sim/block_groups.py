"""Groups of layers that have block tables of their own over one pool, as in vLLM's hybrid KV cache manager."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockGroups:
    """A request has a block table for each group, and a block has equal bytes whichever group it serves.

    `windows`: tokens that a position attends to in a group's layers, itself included; None: all. `token_slots`: slots
    of a token in a block of each group, 1 if all have as many layers. Else a slot is so small that it comes out even
    for all, and the slots that a block of a smaller group has beyond those of its tokens are padding.
    """

    windows: tuple[int | None, ...] = (None,)
    token_slots: tuple[int, ...] = (1,)

    @property
    def block_token_slots(self) -> int:
        """Slots of a block for each token in it, padding included."""
        return max(self.token_slots)

    @property
    def has_one_table(self) -> bool:
        """One group that keeps everything, as if there were no groups."""
        return self.windows == (None,)

    def block_bytes(self, kv_bytes_per_token: int, block_size: int) -> int:
        """Bytes of a block of `block_size` tokens; `kv_bytes_per_token`: of all layers."""
        slots = block_size * self.block_token_slots
        num_bytes, rest = divmod(slots * kv_bytes_per_token, sum(self.token_slots))
        assert not rest, (self, kv_bytes_per_token, block_size)
        return num_bytes

    def most_blocks(
        self, num_tokens: int, block_size: int, max_in_flight_tokens: int, max_model_len: int
    ) -> int:
        """Blocks of a request of `num_tokens` at most, all groups together."""
        of_all = -(-num_tokens // block_size)
        return sum(
            of_all
            if window is None
            else min(
                of_all, most_window_blocks(window, block_size, max_in_flight_tokens, max_model_len)
            )
            for window in self.windows
        )

    def blocks_to_start(
        self, block_size: int, max_in_flight_tokens: int, max_model_len: int
    ) -> int:
        """Blocks that vLLM wants for a request of `max_model_len` tokens, beside the null block, to start at all.

        Of a window it wants one more than all tokens take even where none of them falls out of sight (vLLM 0.32
        `v1/kv_cache_interface.py`: SlidingWindowSpec.max_memory_usage_bytes).
        """
        return sum(
            -(-max_model_len // block_size)
            if window is None
            else most_window_blocks(window, block_size, max_in_flight_tokens, max_model_len)
            for window in self.windows
        )


ONE_GROUP = BlockGroups()


def most_window_blocks(
    window: int, block_size: int, max_in_flight_tokens: int, max_model_len: int
) -> int:
    """Blocks of a request in a group with that window at most, however long it is.

    Its last W - 1 tokens and those in flight, and one block more, because they may begin inside one (vLLM 0.32
    `v1/kv_cache_interface.py`: SlidingWindowSpec.max_admission_blocks_per_request).
    """
    in_sight = min(window - 1 + max_in_flight_tokens, max_model_len)
    return -(-in_sight // block_size) + 1


def in_flight_tokens(max_num_batched_tokens: int, async_scheduling: bool) -> int:
    """Most tokens that are scheduled and not yet processed: a full batch for each that may be under way."""
    return (2 if async_scheduling else 1) * max_num_batched_tokens
