"""Faults planted into prefix caching of groups, and the invariant that notices each."""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import pytest
from group_machine import GroupMachine
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from naive_groups import NaiveGroups
from random_cases import config_of, trace_of

from kvtwin.sim import PolicySettings, simulate
from kvtwin.sim.vllm_v0.caching import VllmV0PrefixCaching
from kvtwin.sim.vllm_v0.caching_pool import CachingBlockPool
from kvtwin.sim.vllm_v0.engine import GroupEngine
from kvtwin.sim.vllm_v0.group import Branch, Group
from kvtwin.sim.vllm_v0.policy import Transfer

# Three samples each in a pool that does not hold all: they find, copy, leave for the host, come back, and are evicted.
# When the last ones come, nobody holds what they find.
LATE_NS = 10**9
TRACE = trace_of(
    [(0, 6, 14), (0, 5, 9), (0, 9, 3), (1, 9, 17), (1, 11, 8), (LATE_NS, 13, 4), (LATE_NS, 12, 2)],
    [((0, 0, num),) for num in (6, 5, 9, 9, 11, 13, 12)],
)


class Pool(VllmV0PrefixCaching):
    """Its device's pool is `pool_type`."""

    pool_type: type[CachingBlockPool]

    def _device_pool(self, num_blocks: int) -> CachingBlockPool:
        return self.pool_type("device", num_blocks)


class StaysInTheQueue(CachingBlockPool):
    """What is found is held, and in line for reuse as well."""

    def touch(self, blocks: Iterable[int]) -> None:
        blocks = list(blocks)
        queue = [block for block in self.free if block in blocks]
        super().touch(blocks)
        for block in queue:
            self.free[block] = None
            self.num_cached_free += 1


class FoundInTheQueue(Pool):
    pool_type = StaysInTheQueue


class CountsAHitOnceTooOften(VllmV0PrefixCaching):
    def allocate(self, group: Group, found: Seq[int] = ()) -> int:
        num_blocks = super().allocate(group, found)
        self.device.touch(found)
        return num_blocks


class FreesWhatOthersFound(VllmV0PrefixCaching):
    """Who goes takes what others have found with it."""

    def free(self, group: Group, branch: Branch) -> tuple[int, int]:
        found = [block for block in branch.blocks if self.device.keys[block]]
        result = super().free(group, branch)
        self.device.release(block for block in found if self.device.references[block])
        return result


class KeepsWhatTheLastOneFound(VllmV0PrefixCaching):
    def free(self, group: Group, branch: Branch) -> tuple[int, int]:
        if group.row == TRACE.num_requests - 1:
            self.device.touch(branch.blocks[:1])
        return super().free(group, branch)


class StoresTooEarly(VllmV0PrefixCaching):
    """A block that has a slot left can be found."""

    def store(self, group: Group, committed: int) -> None:
        super().store(group, committed + 1)


class FindsAnother(VllmV0PrefixCaching):
    """As many blocks as are found, the first of them another one's."""

    def find(self, group: Group) -> list[int]:
        found = super().find(group)
        others = [block for block, key in enumerate(self.device.keys) if key not in (0, 1)]
        return [*others[-1:], *found[1:]] if found and others[-1] not in found else found


class FoundAgainOnTheHost(VllmV0PrefixCaching):
    """What leaves for the host has no identity any more, but can be found by what it was."""

    def swap_out(self, group: Group, end_ns: int) -> Transfer:
        transfer = super().swap_out(group, end_ns)
        for block in transfer.blocks:
            self.device.keys[block] = 0
        return transfer


class LosesAPin(VllmV0PrefixCaching):
    """Blocks that leave are cached before they have been copied."""

    def swap_out(self, group: Group, end_ns: int) -> Transfer:
        transfer = super().swap_out(group, end_ns)
        self.device.drop(transfer.blocks)
        return transfer


def run(policy: type[VllmV0PrefixCaching], engine: type[Any], paranoid: bool, out: Path) -> Any:
    config = config_of(
        f"{policy.__module__}:{policy.__name__}",
        num_samples=3,
        num_gpu_blocks_override=22,
        block_size=4,
        max_model_len=26,
        watermark=0.0,
        cost="constant:1000000",
    )
    return simulate(TRACE, config, out, engine_type=engine, paranoid=paranoid)


@pytest.mark.parametrize(
    ("policy", "engine", "paranoid", "message"),
    [
        (FoundInTheQueue, GroupEngine, True, r"INV-2: device block \d+ is 1 times in the free"),
        (FreesWhatOthersFound, GroupEngine, True, r"INV-3: device block \d+ is in \d tables"),
        (CountsAHitOnceTooOften, GroupEngine, True, r"INV-3: device block \d+ is in \d+ tables"),
        (LosesAPin, GroupEngine, True, r"INV-3: device block \d+ is in \d+ tables"),
        (FoundAgainOnTheHost, GroupEngine, True, r"INV-2: \d+ blocks can be found, \d+ have a key"),
        (KeepsWhatTheLastOneFound, GroupEngine, False, "INV-8: 21 of 22 device blocks are free"),
        (FindsAnother, NaiveGroups, False, r"INV-7: \d found \d+, not \d+"),
        (StoresTooEarly, NaiveGroups, False, "INV-1"),
    ],
)
def test_a_fault_in_what_is_found_is_caught(
    policy: type[VllmV0PrefixCaching],
    engine: type[Any],
    paranoid: bool,
    message: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(AssertionError, match=message):
        run(policy, engine, paranoid, tmp_path / "out")
    assert not (tmp_path / "out").exists(), "a run that failed must leave nothing"


def test_without_a_fault_all_is_well(tmp_path: Path) -> None:
    for engine, paranoid in ((GroupEngine, True), (NaiveGroups, False)):
        summary = run(VllmV0PrefixCaching, engine, paranoid, tmp_path / engine.__name__)
        assert summary["num_finished"] == TRACE.num_requests
        assert summary["hit_tokens"] > 0, "nobody finds anything: faults stay unseen"
        assert summary["swapping"]["num_groups_out"] > 0


class EvictsFirst(CachingBlockPool):
    """What is free without content is behind what can be found."""

    def __init__(self, name: str, num_blocks: int) -> None:
        super().__init__(name, num_blocks)
        self._free_to_back = True


class BeginningFirst(CachingBlockPool):
    """The beginning of a table is evicted before its end."""

    def drop(self, block_ids: Seq[int]) -> int:
        return super().drop(block_ids[::-1])


class LatestFirst(CachingBlockPool):
    """What was left last is evicted first."""

    def release(self, blocks: Iterable[int]) -> None:
        blocks = list(blocks)
        super().release(blocks)
        for block in self.unheld(is_cached=False) + [b for b in blocks if b in self.free]:
            self.free.move_to_end(block, last=False)


class FindsTheLatest(CachingBlockPool):
    """Of equal blocks the one that was stored last."""

    def find(self, key: int) -> int:
        found = self.by_key[key]
        return list(found)[-1] if isinstance(found, dict) else found


class ForgetsWhatIsFound(CachingBlockPool):
    """What nobody holds is lost, although it counts as cached."""

    def find_chain(self, keys: Iterable[int]) -> list[int]:
        return [block for block in super().find_chain(keys) if self.references[block]]


@pytest.mark.parametrize(
    ("pool_type", "message"),
    [
        (EvictsFirst, r"is evicted, \{.*\} are free"),
        (BeginningFirst, "is evicted before"),
        (LatestFirst, "is evicted"),
        (FindsTheLatest, r"are found, not \[\d"),
        (ForgetsWhatIsFound, r"are found, not \[\d"),
        (CachingBlockPool, None),
    ],
)
def test_the_machine_notices_another_order(
    pool_type: type[CachingBlockPool], message: str | None
) -> None:
    def policy(given: PolicySettings) -> Pool:
        return type("Faulty", (Pool,), {"pool_type": pool_type})(given)

    # What is left over after a failure is no news.
    fields = {"policy_type": staticmethod(policy), "seen": Counter(), "teardown": lambda _: None}
    few = settings(max_examples=40, stateful_step_count=60, phases=[Phase.generate])

    def play() -> None:
        run_state_machine_as_test(type("Machine", (GroupMachine,), fields), settings=few)

    if message is None:
        play()
        return
    with pytest.raises(AssertionError, match=message):
        play()
