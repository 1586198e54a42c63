"""Policies with one fault each, to see that somebody notices."""

from array import array
from collections.abc import Sequence as Seq

from kvtwin.sim import PolicySettings, Sequence
from kvtwin.sim.policies.contiguous import Contiguous
from kvtwin.sim.policies.orca import OrcaOracle
from kvtwin.sim.policies.paged import Paged
from kvtwin.sim.policies.slots import Slots
from kvtwin.sim.policies.static import StaticBatch


def _holder(block: int) -> Sequence:
    """Somebody who holds one block and was never admitted."""
    seq = Sequence(99, 1, 1, 1)
    seq.blocks = [block]
    return seq


class LeakedBlock(Paged):
    def free(self, seq: Sequence) -> None:
        seq.blocks.pop()
        super().free(seq)


class DoubleGrant(Paged):
    def grant(self, seq: Sequence, num_tokens: int) -> None:
        super().grant(seq, num_tokens)
        if seq.row == 3:  # the last to be admitted at first, or the next one would take the block
            super().free(_holder(seq.blocks[0]))


class SharedBlock(Paged):
    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self._first_block: int | None = None

    def grant(self, seq: Sequence, num_tokens: int) -> None:
        super().grant(seq, num_tokens)
        if self._first_block is None:
            self._first_block = seq.blocks[0]
        else:
            super().free(_holder(seq.blocks[0]))
            seq.blocks[0] = self._first_block


class BlockTwiceInATable(Paged):
    """The one it stands for is free, so that the number of used blocks is right."""

    def grant(self, seq: Sequence, num_tokens: int) -> None:
        super().grant(seq, num_tokens)
        if len(seq.blocks) > 1:
            super().free(_holder(seq.blocks.pop()))
            seq.blocks.append(seq.blocks[0])


class StolenBlock(Paged):
    """The latest gets the last block of the first: still one table a block, and the number is right."""

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        self._first: Sequence | None = None

    def grant(self, seq: Sequence, num_tokens: int) -> None:
        super().grant(seq, num_tokens)
        if self._first is None:
            self._first = seq
        elif seq.row == 3:
            seq.blocks.append(self._first.blocks.pop())


class BlockOutside(Paged):
    def grant(self, seq: Sequence, num_tokens: int) -> None:
        super().grant(seq, num_tokens)
        super().free(_holder(seq.blocks[0]))
        seq.blocks[0] = 1000


class WrongCount(Paged):
    def num_free_slots(self) -> int:
        return super().num_free_slots() + 1


class SwappedBlocks(Paged):
    """Every slot has one owner, but the tokens are elsewhere."""

    def grow(self, seqs: Seq[Sequence]) -> int:
        num_served = super().grow(seqs)
        for seq in seqs[:num_served]:
            seq.blocks.reverse()
        return num_served


class RefusesForEver(Paged):
    def fits(self, seq: Sequence, num_tokens: int, others_running: bool) -> bool:
        return False


class NeverExtends(Paged):
    """A prompt in chunks gives up its memory at the second one, is admitted again, and so on."""

    def extend(self, seq: Sequence, num_tokens: int) -> bool:
        return False


class TooMuchExternal(Paged):
    def unusable_slots(self, seq: Sequence, num_tokens: int) -> int:
        return self.num_slots + 1


class GrantsMoreThanItHas(Paged):
    def grant(self, seq: Sequence, num_tokens: int) -> None:
        super().grant(seq, num_tokens)
        seq.granted_slots += 1


class HalfAChunk(OrcaOracle):
    def free(self, seq: Sequence) -> None:
        seq.granted_slots //= 2
        super().free(seq)


class LostFreeRun(Contiguous):
    def free_runs(self) -> list[tuple[int, int]]:
        return super().free_runs()[1:]


class FreeInsideARun(Contiguous):
    def free_runs(self) -> list[tuple[int, int]]:
        return [(first, num + 1) for first, num in super().free_runs()]


class ShortFree(Contiguous):
    def free(self, seq: Sequence) -> None:
        seq.granted_slots -= 1
        super().free(seq)


class UnloggedMove(Contiguous):
    """Moves that nobody is told of, so that nobody copies the tokens."""

    def grow(self, seqs: Seq[Sequence]) -> int:
        log, self.log = self.log, None
        num_served = super().grow(seqs)
        self.log = log
        return num_served


class KeptForEver(StaticBatch):
    def free(self, seq: Sequence) -> None:
        seq.granted_slots = 0


class HashOrdered(Paged):
    """Takes blocks in an order that differs from process to process."""

    def fits(self, seq: Sequence, num_tokens: int, others_running: bool) -> bool:
        by_hash = sorted(self._free_block_ids, key=lambda block: hash(str(block)))
        self._free_block_ids = array("q", by_hash)
        return super().fits(seq, num_tokens, others_running)


class FreesOneBlockTwice(Paged):
    """And another one not at all, so that the number of free blocks is right."""

    def free(self, seq: Sequence) -> None:
        seq.blocks[0] = seq.blocks[-1]
        super().free(seq)


class HitTooLong(Slots):
    """One token more than the two prompts have in common."""

    def num_hit_tokens(self, seq: Sequence) -> int:
        return min(super().num_hit_tokens(seq) + 1, seq.known - 1)


class CachedAndHeld(Slots):
    """What a place keeps stays known while somebody writes there."""

    def grant(self, seq: Sequence, num_tokens: int) -> None:
        before = dict(self._kept)
        super().grant(seq, num_tokens)
        if seq.row == 2:  # the only one admitted then, or both would get that place
            self._kept = before


class CacheNotGivenBack(Slots):
    """Slots count as cached still when their place has been taken."""

    def grant(self, seq: Sequence, num_tokens: int) -> None:
        before = self._num_cached_slots
        super().grant(seq, num_tokens)
        self._num_cached_slots = before


class LostPlace(Slots):
    """A place with a cached prompt is never given to anybody again, and in no list."""

    def free(self, seq: Sequence) -> None:
        super().free(seq)
        first, pieces = self._kept.popitem()
        if pieces:
            self._num_free_slots = sum(num for _, num in self.free_runs())
            self._num_cached_slots = sum(num for _, num in self.cached_runs())
        else:
            self._kept[first] = pieces
