"""A sequence: the one decoding stream of an admitted request."""

from __future__ import annotations

from .prompts import UNKNOWN_PROMPT, Pieces

NEVER = -1  # a step number that is never reached


class Sequence:
    """State of one request from its first look at the pool until it finishes.

    The engine owns the schedule fields, the allocator owns the memory fields. While a sequence decodes, its committed
    tokens at the plan of step `t` are `t + decode_offset`, so that no step has to touch it.
    """

    decode_offset: int
    finish_step: int
    tail_step: int
    tail: int
    room: int

    __slots__ = (
        "asked_slots",  # slots the policy asked for, as of the last `admit` or `extend`
        "blocks",  # the block table, or the first slot of each run
        "computed",  # tokens found in the pool at this admission, and committed by prefill steps since
        "decode_offset",  # committed = step + decode_offset while decoding
        "decoding",  # whether the prefill is complete
        "end",  # E = prompt + output - 1: committed tokens when it finishes
        "finish_step",  # step that generates the last token
        "granted_slots",  # slots granted, rounding included, as of the last `admit` or `extend`
        "known",  # prompt plus tokens generated before this admission
        "last_token_ns",  # when the last token came out, kept across a preemption; -1 before the first
        "max_tokens",  # what the client asked for
        "num_output_tokens",  # the true output, after clipping
        "num_prompt_tokens",
        "phase",  # of the steps in which it grows, see `GrowthCalendar`; -1 if it need not grow
        "pieces",  # what the tokens of the prompt are, as far as it is known: see `prompts.py`
        "room",  # tokens that fit into what the allocator has granted at admission or by `extend`
        "row",  # request number in the trace
        "serial",  # admission number, new at each admission
        "tail",
        "tail_step",  # step of the last growth, which grants `tail` slots that stay empty
    )

    def __init__(
        self,
        row: int,
        num_prompt_tokens: int,
        num_output_tokens: int,
        max_tokens: int,
        pieces: Pieces = UNKNOWN_PROMPT,
    ) -> None:
        self.row = row
        self.serial = NEVER
        self.num_prompt_tokens = num_prompt_tokens
        self.num_output_tokens = num_output_tokens
        self.max_tokens = max_tokens
        self.end = num_prompt_tokens + num_output_tokens - 1
        self.known = num_prompt_tokens
        self.computed = 0
        self.decoding = False
        self.last_token_ns = NEVER
        self.phase = NEVER
        self.pieces = pieces
        self.asked_slots = 0
        self.granted_slots = 0
        self.blocks: list[int] = []

    def committed(self, step: int) -> int:
        """Tokens whose KV is in the pool at the plan of `step`."""
        return step + self.decode_offset if self.decoding else self.computed
