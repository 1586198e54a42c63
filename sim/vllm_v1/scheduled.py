"""What a step was decided to do."""

from __future__ import annotations

from typing import NamedTuple

from .request import Request


class Admission(NamedTuple):
    """A request that joined the running ones."""

    request: Request
    resumed: bool
    num_hit_tokens: int


class Scheduled:
    """What one call of `Scheduler.schedule` decided."""

    def __init__(self, step: int) -> None:
        self.step = step
        # Requests that do not decode, with the tokens that they compute, in the order of the batch; and whether each
        # of them has caught up with what is known, so that it gets a token.
        self.chunks: list[tuple[Request, int]] = []
        self.gets_token: list[bool] = []
        self.left_out: list[Request] = []  # decoding ones that compute nothing
        self.preempted: list[Request] = []
        self.stopped_decoding: list[Request] = []  # the preempted that decoded
        self.admitted: list[Admission] = []
        self.refused: Request | None = None  # the head of the queue, if there was no memory for it
        self.num_tokens = 0
