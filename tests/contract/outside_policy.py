"""A policy from outside the project: the smallest one that could work."""

from kvtwin.sim import Allocator, PolicySettings, Sequence


class Halves(Allocator):
    """Two places, each half of the pool."""

    chunked_prefill = False
    largest_grant_is = "a half of the pool"

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self._half_slots = settings.num_slots // 2
        self._free_firsts = [0, self._half_slots]

    def largest_need(self, num_prompt_tokens: int, num_output_tokens: int, max_tokens: int) -> int:
        return num_prompt_tokens + num_output_tokens - 1

    @property
    def largest_grant(self) -> int:
        return self._half_slots

    def fits(self, seq: Sequence, num_tokens: int, others_running: bool) -> bool:
        return bool(self._free_firsts)

    def grant(self, seq: Sequence, num_tokens: int) -> None:
        seq.blocks = [self._free_firsts.pop()]
        seq.room = seq.asked_slots = seq.granted_slots = self._half_slots

    def free(self, seq: Sequence) -> None:
        self._free_firsts.append(seq.blocks.pop())

    def num_free_slots(self) -> int:
        return len(self._free_firsts) * self._half_slots + self.num_slots % 2

    def free_runs(self) -> list[tuple[int, int]]:
        if len(self._free_firsts) == 2:
            return [(0, self.num_slots)]
        odd = self.num_slots % 2
        if self._free_firsts == [self._half_slots]:
            return [(self._half_slots, self._half_slots + odd)]
        runs = [(first, self._half_slots) for first in self._free_firsts]
        return runs + [(self.num_slots - 1, 1)] * odd

    def runs(self, seq: Sequence) -> list[tuple[int, int]]:
        return [(first, self._half_slots) for first in seq.blocks]


class NotOne:
    """Looks like a policy to nobody."""


class Unfinished(Halves):
    """Declares something that it does not define."""

    from abc import abstractmethod

    @abstractmethod
    def evict(self) -> None: ...
