"""A request as the scheduler knows it."""

from __future__ import annotations

from .content import Span

NEVER = -1


class Request:
    """State of one request, from its arrival to its end.

    A request that `decodes` is one token short of what is known and gets it in every step. It is not visited by
    steps that change nothing else: its computed tokens at the schedule of step t are `t + offset`, and `computed` and
    `known` are stale until `Scheduler.settle`.
    """

    __slots__ = (
        "boundary",  # tokens up to which a window group should have kept a prefix of this prompt, or 0
        "computed",  # tokens whose KV has been computed or is being computed
        "decodes",
        "end_tokens",  # known tokens at which it ends
        "ended",
        "finish_step",  # step that gives its last token, while it decodes
        "in_flight",  # tokens scheduled whose step has not been processed
        "known",  # prompt plus generated tokens
        "max_tokens",
        "num_prompt_tokens",
        "num_stored",  # leading blocks that have been looked at for storing
        "numbers",  # of all its full blocks, those of the answer included; see `Chains`
        "offset",
        "placeholders",  # tokens that steps in flight will add to the known ones
        "preempted",  # waits again
        "priority",
        "rank",  # order of arrival
        "request_id",
        "row",
        "running",
        "serial",  # admission number
        "spans",
        "stale",  # tokens in flight from before a preemption
        "tables",  # by group: block ids by position, null blocks included
        "wake_step",  # the next step that has to look at it, while it decodes
    )

    def __init__(
        self,
        row: int,
        num_prompt_tokens: int,
        max_tokens: int,
        max_model_len: int,
        priority: int = 0,
        request_id: str = "",
    ) -> None:
        self.row = self.rank = row
        self.request_id = request_id
        self.priority = priority
        self.num_prompt_tokens = self.known = num_prompt_tokens
        self.max_tokens = max_tokens
        self.end_tokens = min(num_prompt_tokens + max_tokens, max_model_len)
        self.spans: list[Span] = []
        self.numbers: list[int] = []
        self.computed = self.placeholders = self.in_flight = self.stale = self.boundary = 0
        self.tables: list[list[int]] = []
        self.num_stored = 0
        self.decodes = self.running = self.preempted = self.ended = False
        self.offset = 0
        self.serial = self.wake_step = self.finish_step = NEVER
