"""What the engine wants the executor to do next."""

from __future__ import annotations

from .sequence import Sequence


class Plan:
    """One step, or several of the same shape: `num_decode_tokens` sequences gain a token in each.

    The totals are those of the first step; in each further one every decoding sequence reads one slot more. Only a
    plan without chunks and moves has `max_steps` above 1. The executor stops at the first step boundary at or after
    `deadline_ns`, which matters to such plans only.
    """

    __slots__ = (
        "start_ns",
        "num_prefill_tokens",
        "prefill_pairs",  # query-key pairs of the chunks
        "prefill_context_slots",  # KV slots the chunks read, their own included
        "num_decode_tokens",
        "decode_context_slots",  # KV slots the decodes read, the new token's included
        "moved_slots",
        "max_steps",
        "deadline_ns",
        "chunks",  # (sequence, tokens computed)
    )

    def __init__(self, start_ns: int, num_decode_tokens: int, decode_context_slots: int) -> None:
        self.start_ns = start_ns
        self.num_prefill_tokens = 0
        self.prefill_pairs = 0
        self.prefill_context_slots = 0
        self.num_decode_tokens = num_decode_tokens
        self.decode_context_slots = decode_context_slots
        self.moved_slots = 0
        self.max_steps = 1
        self.deadline_ns = start_ns
        self.chunks: list[tuple[Sequence, int]] = []

    @property
    def totals(self) -> tuple[int, ...]:
        """In the order of `cost.TOTALS`."""
        return (
            self.num_prefill_tokens,
            self.prefill_pairs,
            self.prefill_context_slots,
            self.num_decode_tokens,
            self.decode_context_slots,
            self.moved_slots,
        )
