"""What the engine wants the executor to do next."""

from __future__ import annotations

from dataclasses import dataclass, field

from .sequence import Sequence


@dataclass(slots=True)
class Plan:
    """One step, or several of the same shape: `num_decode_tokens` sequences gain a token in each.

    The totals are those of the first step; in each further one every decoding sequence reads one slot more. Only a
    plan without chunks and moves has `max_steps` above 1. The executor stops at the first step boundary at or after
    `deadline_ns`, if there is one.
    """

    start_ns: int
    num_prefill_tokens: int
    prefill_pairs: int  # query-key pairs of the chunks
    prefill_context_slots: int  # KV slots the chunks read, their own included
    num_decode_tokens: int
    decode_context_slots: int  # KV slots the decodes read, the new token's included
    moved_slots: int
    max_steps: int
    deadline_ns: int | None
    chunks: list[tuple[Sequence, int]] = field(default_factory=list)  # (sequence, tokens computed)

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
