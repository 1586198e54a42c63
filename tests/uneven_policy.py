"""A policy whose sequences do not grow in step with each other."""

from kvtwin.sim import Sequence
from kvtwin.sim.policies.paged import Paged


class Uneven(Paged):
    """Paging with spare blocks at admission, more for some rows than for others, while there are any.

    So a sequence may start to decode before another one and yet grow for the first time after it.
    """

    chunked_prefill = False

    def grant(self, seq: Sequence, num_tokens: int) -> None:
        super().grant(seq, num_tokens)
        for _ in range(seq.row * 7 % 4):
            self.grow([seq])
        seq.room = seq.asked_slots = seq.granted_slots = len(seq.blocks) * self.growth_slots
