"""Policies and engines with one fault each that only shows in what is written, or in what is logged."""

from array import array
from collections.abc import Sequence as Seq
from typing import Any

from kvtwin.sim import Sequence
from kvtwin.sim.buddy import Buddy
from kvtwin.sim.policies.contiguous import Contiguous
from kvtwin.sim.policies.orca import OrcaOracle
from kvtwin.sim.policies.paged import Paged
from kvtwin.sim.policies.slots import Slots
from kvtwin.sim.policies.static import StaticBatch
from kvtwin.sim.vllm_v0.caching import VllmV0PrefixCaching
from kvtwin.sim.vllm_v0.group import Branch, Group
from kvtwin.sim.vllm_v0.policy import VllmV0


class FreedWhileItRuns(Paged):
    """The first block of whoever grows goes back to the free list, and the log says so."""

    def grow(self, seqs: Seq[Sequence]) -> int:
        num_served = super().grow(seqs)
        for seq in seqs[:1]:
            self._free_block_ids.insert(0, seq.blocks[0])
            if self.log is not None:
                self.log.add("free", seq.row, seq.blocks[0], 1)
        return num_served


class GrantedTwice(Paged):
    """A block of whoever is admitted third goes to the next one, too."""

    def grant(self, seq: Sequence, num_tokens: int) -> None:
        super().grant(seq, num_tokens)
        if seq.row == 2:
            self._free_block_ids.append(seq.blocks[0])


class AnotherBlockFreed(Paged):
    """The log names another block than the one that is freed."""

    def free(self, seq: Sequence) -> None:
        log, self.log, blocks = self.log, None, list(seq.blocks)
        super().free(seq)
        self.log = log
        for block in blocks:
            if log is not None:
                log.add("free", seq.row, (block + 1) % self._num_blocks, 1)


class OverlappingHalves(OrcaOracle):
    """Buddies begin in the middle of each other, and the log says so."""

    def grant(self, seq: Sequence, num_tokens: int) -> None:
        log, self.log = self.log, None
        super().grant(seq, num_tokens)
        self.log = log
        shift = min(seq.granted_slots // 2, seq.blocks[0])
        if log is not None:
            log.add("grant", seq.row, seq.blocks[0] - shift, seq.granted_slots)


class SmallerThanGranted(OrcaOracle):
    """The recorder is told that all of a power of two was asked for."""

    def grant(self, seq: Sequence, num_tokens: int) -> None:
        super().grant(seq, num_tokens)
        seq.asked_slots = 1 << Buddy.order_of(seq.asked_slots)


class _Shifted:
    """A log in which moves go one slot too far."""

    def __init__(self, log: Any) -> None:
        self.log = log

    def add(self, action: str, row: int, first: int, num: int) -> None:
        self.log.add(action, row, first - (action == "move" and first > 0), num)


class CompactedTooFar(Contiguous):
    """Runs slide over the last slot of the one before them."""

    def _compact(self, grower: Sequence, more: int) -> None:
        log = self.log
        self.log = _Shifted(log)
        super()._compact(grower, more)
        self.log = log


class PlaceKept(StaticBatch):
    """The place of the first request is not given back when its batch ends."""

    def free(self, seq: Sequence) -> None:
        if seq.row:
            super().free(seq)


class NothingExternal(Contiguous):
    """Free slots in runs too short for who was refused count as usable."""

    def unusable_slots(self, seq: Sequence, num_tokens: int) -> int:
        return 0


class WatermarkForgotten(Paged):
    """What the watermark holds back counts as usable."""

    def unusable_slots(self, seq: Sequence, num_tokens: int) -> int:
        return 0


class OneTokenTooMany(Slots):
    """A hit of one token more than the prompts have in common."""

    def num_hit_tokens(self, seq: Sequence) -> int:
        return min(super().num_hit_tokens(seq) + 1, seq.known - 1)


class ForgottenCache(Slots):
    """What is left of a prompt is counted as free."""

    def num_cached_slots(self) -> int:
        return 0

    def num_free_slots(self) -> int:
        return super().num_free_slots() + super().num_cached_slots()

    def cached_runs(self) -> list[tuple[int, int]]:
        return []

    def free_runs(self) -> list[tuple[int, int]]:
        return [*super().free_runs(), *super().cached_runs()]


class WrittenInPlace(VllmV0):
    """Blocks that several sequences hold are written to as if they were one's own."""

    def append(self, group: Group, committed: int) -> tuple[int, int]:
        refs = self.device.refs
        self.device.refs = array("q", [min(count, 1) for count in refs])
        held = self.device.refs.tolist()
        counts = super().append(group, committed)
        changes = zip(self.device.refs, held, strict=True)
        self.device.refs = array(
            "q", [count + new - old for count, (new, old) in zip(refs, changes, strict=True)]
        )
        return counts


class ForkOfTheWrongBeam(VllmV0):
    """The log names the first block of another beam than the one whose table is taken."""

    def fork(self, branch: Branch, parent: Branch) -> int:
        log, self.log = self.log, None
        num_common = sum(one == two for one, two in zip(branch.blocks, parent.blocks, strict=True))
        old = branch.blocks[num_common:]
        num_freed = super().fork(branch, parent)
        self.log = log
        if log is not None:
            for block in old:
                log.add("free", branch.row, block, 1, branch.branch)
            for block in branch.blocks[num_common:]:
                log.add("share", branch.row, block - 1 if block else 1, 1, branch.branch)
        return num_freed


class FoundInAnotherPrompt(VllmV0PrefixCaching):
    """The first block that is found is one of another chain, which can be found, too."""

    def find(self, group: Group) -> list[int]:
        found = super().find(group)
        others = [block for block, key in enumerate(self.device.keys) if key]
        return [*others[-1:], *found[1:]] if found and others[-1] not in found else found


def work_past_the_end(work: Any) -> Any:
    """An engine's `work` that computes one token more of who ends."""

    def more(self: Any, plan: Any) -> Any:
        return [
            item._replace(
                num_tokens=item.num_tokens + (item.first + item.num_tokens == item.seq.end)
            )
            for item in work(self, plan)
        ]

    return more


def work_again(work: Any) -> Any:
    """An engine's `work` that computes a token twice."""

    def again(self: Any, plan: Any) -> Any:
        return [
            item._replace(first=item.first - 1, num_tokens=2)
            if item.num_tokens == 1 and item.first
            else item
            for item in work(self, plan)
        ]

    return again
