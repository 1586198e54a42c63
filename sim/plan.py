"""What the engine wants the executor to do next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .sequence import Sequence

UNLIMITED = 1 << 62  # tokens


@dataclass(frozen=True)
class Limits:
    """What a step may hold: sequences, and tokens (for policies that chunk prompts)."""

    max_num_seqs: int
    max_num_batched_tokens: int


class Plan:
    """One step, and perhaps more that need no decision in between.

    The totals are those of the first step. It may be repeated up to `max_steps` times, if it has no chunks and moves
    nothing: `num_decode_tokens` sequences gain a token in each repetition and read one slot more. Behind that come the
    segments of `more`, within which the decoding sequences stay the same as well; between segments, sequences whose
    prefill is complete join and finished ones leave. The executor stops at the first step boundary at or after
    `deadline_ns`, which matters to plans of more than one step only.
    """

    __slots__ = (
        "chunks",  # (sequence, tokens computed)
        "deadline_ns",
        "decode_context_slots",  # KV slots the decodes read, the new token's included
        "max_steps",
        "more",  # (number of steps, decode tokens in each, slots the decodes of the first one read); taken once
        "moved_slots",
        "num_decode_tokens",
        "num_prefill_tokens",
        "prefill_context_slots",  # KV slots the chunks read, their own included
        "prefill_pairs",  # query-key pairs of the chunks
        "ready_ns",  # not before this: blocks that it needs have been copied by then
        "start_ns",
    )

    def __init__(self, start_ns: int, num_decode_tokens: int, decode_context_slots: int) -> None:
        self.start_ns = self.ready_ns = start_ns
        self.num_prefill_tokens = 0
        self.prefill_pairs = 0
        self.prefill_context_slots = 0
        self.num_decode_tokens = num_decode_tokens
        self.decode_context_slots = decode_context_slots
        self.moved_slots = 0
        self.max_steps = 1
        self.deadline_ns = start_ns
        self.chunks: list[tuple[Sequence, int]] = []
        self.more: Iterable[tuple[int, int, int]] = ()

    def recompute(self, num_known: Iterable[int]) -> None:
        """Without a cache each decoding sequence computes all its tokens again, and reads no KV of earlier steps."""
        self.num_decode_tokens = self.decode_context_slots = self.prefill_context_slots = 0
        for known in num_known:
            self.num_prefill_tokens += known
            self.prefill_pairs += known * (known + 1) // 2

    def add_chunk(self, seq: Sequence, num_tokens: int) -> None:
        """The next tokens of a prompt: each meets the keys of all that are in the pool before it, and its own."""
        self.chunks.append((seq, num_tokens))
        self.count_chunk(seq.computed, num_tokens)

    def count_chunk(self, before: int, num_tokens: int) -> None:
        """What a chunk behind `before` tokens costs."""
        self.num_prefill_tokens += num_tokens
        self.prefill_pairs += num_tokens * before + num_tokens * (num_tokens + 1) // 2
        self.prefill_context_slots += before + num_tokens
