"""The checks of the invariants fire: each fault is planted, and the message names the invariant."""

import sys
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from random_cases import config_of, trace_of
from watched_engine import OneStepExecutor, WatchedEngine

from kvtwin.sim import RunConfig, simulate
from kvtwin.sim.engine import Engine
from kvtwin.sim.executor import CostExecutor
from kvtwin.sim.gaps import GapHistogram
from kvtwin.sim.plan import Plan

SIMULATE_MODULE = sys.modules["kvtwin.sim.simulate"]
# Four at a time in a pool that holds less than all four, so that they grow, move, wait and are preempted.
TRACE = trace_of([(0, 6, 14), (0, 5, 9), (0, 9, 3), (0, 3, 17), (0, 7, 8), (0, 4, 4)])


# Prompts that begin alike, with two places of 24 slots for them: places are left, found again, and written over.
ALIKE = trace_of(
    [(0, 6, 14), (0, 5, 9), (0, 9, 3), (0, 3, 17), (0, 7, 8), (0, 4, 4)],
    [
        ((0, 0, 6),),
        ((1, 0, 5),),
        ((0, 0, 4), (2, 0, 5)),
        ((1, 0, 3),),
        ((0, 0, 4), (2, 0, 3)),
        ((1, 0, 2), (2, 7, 2)),
    ],
)


def setting(policy: str, **fields: Any) -> RunConfig:
    small = {"num_gpu_blocks_override": 13, "block_size": 4, "max_model_len": 24}
    return config_of(policy, **(small | {"max_num_seqs": 4, "growth_tokens": 3} | fields))


@pytest.mark.parametrize(
    ("policy", "paranoid", "message"),
    [
        (
            "LeakedBlock",
            True,
            r"INV-1: \d+ slots held \+ \d+ free \+ 0 cached = \d+, the pool has 52",
        ),
        ("LeakedBlock", False, r"INV-8: \d+ of 52 slots are free or cached after the last request"),
        ("DoubleGrant", True, r"INV-2: slot \d+ is free and held by request \d"),
        ("SharedBlock", True, r"INV-3: slot 0 is held by request 1 and by request 0, but nothing"),
        ("BlockTwiceInATable", True, r"INV-3: slot \d+ is held by request 0 and by request 0,"),
        ("StolenBlock", True, "INV-7: request 0 has committed 6 tokens to 4 slots"),
        ("BlockOutside", True, "INV-2: request 0 holds slot 4000, outside a pool of 52"),
        ("WrongCount", True, r"INV-1: free runs hold \d+ slots, the free list says \d+"),
        ("GrantsMoreThanItHas", True, r"INV-1: sequences hold \d+ slots, the total says \d+"),
        ("RefusesForEver", False, "INV-5: nothing runs at 0 ns"),
        (
            "HalfAChunk",
            True,
            r"INV-1: \d+ slots held \+ \d+ free \+ 0 cached = \d+, the pool has 52",
        ),
        ("HalfAChunk", False, r"INV-5: nothing runs at \d+ ns"),
        ("LostFreeRun", True, r"INV-1: free runs hold 0 slots, the free list says \d+"),
        ("FreeInsideARun", True, r"INV-[12]: "),
        (
            "ShortFree",
            True,
            r"INV-1: \d+ slots held \+ \d+ free \+ 0 cached = \d+, the pool has 52",
        ),
        ("KeptForEver", False, r"INV-5: nothing runs at \d+ ns"),
    ],
)
def test_a_faulty_policy_is_caught(
    policy: str, paranoid: bool, message: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=message):
        simulate(TRACE, setting(f"faulty_policies:{policy}"), tmp_path / "out", paranoid=paranoid)
    assert not (tmp_path / "out").exists(), "a run that failed must leave nothing"


def test_a_run_that_gets_nowhere_ends(tmp_path: Path) -> None:
    config = setting("faulty_policies:NeverExtends", max_num_batched_tokens=4, admission="step")
    message = r"INV-5: no request has ended in \d{5} steps, 1 of 3 did before; the longest has 23"
    with pytest.raises(AssertionError, match=message):
        simulate(trace_of([(0, 4, 1), (0, 6, 17), (0, 5, 9)]), config, tmp_path / "out")


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("TooMuchExternal", r"INV-1: external \d+ of \d+ free slot-ns"),
        (
            "GrantsMoreThanItHas",
            r"INV-1: granted \d+ \+ free \d+ \+ cached 0 slot-ns are \d+, the pool has 52 slots x",
        ),
    ],
)
def test_a_timeline_row_that_does_not_add_up_is_caught(
    policy: str, message: str, tmp_path: Path
) -> None:
    """Without --paranoid, too: every step of 25 ms closes a row."""
    config = setting(f"faulty_policies:{policy}", cost="constant:25000000")
    with pytest.raises(AssertionError, match=message):
        simulate(TRACE, config, tmp_path)


def test_a_slot_that_is_free_twice_is_caught(tmp_path: Path) -> None:
    """Two blocks of one request: one is lost, the other freed twice, and the count is right."""
    with pytest.raises(AssertionError, match=r"INV-2: "):
        simulate(
            trace_of([(0, 8, 1)]),
            setting("faulty_policies:FreesOneBlockTwice"),
            tmp_path,
            paranoid=True,
        )


@pytest.mark.parametrize("policy", ["SwappedBlocks", "UnloggedMove"])
def test_a_read_of_what_was_not_written_is_caught(policy: str, tmp_path: Path) -> None:
    config = setting(f"faulty_policies:{policy}")
    with (
        patch.object(SIMULATE_MODULE, "CostExecutor", OneStepExecutor),
        pytest.raises(AssertionError, match=r"INV-7: request \d reads position"),
    ):
        simulate(TRACE, config, tmp_path, engine_type=WatchedEngine, decisions=True)


@pytest.mark.parametrize(
    ("policy", "paranoid", "message"),
    [
        ("CachedAndHeld", True, r"INV-2: slot \d+ is (free|cached) and held by request \d"),
        ("CacheNotGivenBack", True, r"INV-1: cached runs hold \d+ slots, the cached list says \d+"),
        ("CacheNotGivenBack", False, r"INV-8: \d+ of 52 slots are free or cached after the last"),
        (
            "LostPlace",
            True,
            r"INV-1: \d+ slots held \+ \d+ free \+ \d+ cached = \d+, the pool has 52",
        ),
        ("LostPlace", False, r"INV-5: nothing runs at \d+ ns"),
    ],
)
def test_a_faulty_cache_is_caught(
    policy: str, paranoid: bool, message: str, tmp_path: Path
) -> None:
    config = setting(f"faulty_policies:{policy}", max_num_seqs=2)
    with pytest.raises(AssertionError, match=message):
        simulate(ALIKE, config, tmp_path, paranoid=paranoid)


@pytest.mark.parametrize(
    ("policy", "message"),
    [("HitTooLong", r"INV-7: request \d reads position \d"), ("policies.slots:Slots", None)],
)
def test_a_hit_on_what_is_not_there_is_caught(
    policy: str, message: str | None, tmp_path: Path
) -> None:
    """Watched token by token; without the fault there are hits, and nobody objects."""
    module = "faulty_policies:" if message else "kvtwin.sim."
    config = setting(module + policy, max_num_seqs=2)
    options = {"engine_type": WatchedEngine, "decisions": True, "paranoid": True}
    with patch.object(SIMULATE_MODULE, "CostExecutor", OneStepExecutor):
        if message:
            with pytest.raises(AssertionError, match=message):
                simulate(ALIKE, config, tmp_path, **options)
        else:
            assert simulate(ALIKE, config, tmp_path, **options)["hit_tokens"] > 0


class WrongLive(Engine):
    def commit(self, plan: Plan, ends_ns: Seq[int]) -> None:
        super().commit(plan, ends_ns)
        self.ledger.live += 1


class WrongGranted(Engine):
    def commit(self, plan: Plan, ends_ns: Seq[int]) -> None:
        super().commit(plan, ends_ns)
        self.ledger.granted += 1


class LiveAboveUseful(Engine):
    def commit(self, plan: Plan, ends_ns: Seq[int]) -> None:
        self.ledger.live += 1000
        super().commit(plan, ends_ns)


class ForgotsTheRest(Engine):
    """Stops as soon as it is asked."""

    def plan(self, now_ns: int) -> None:
        self.queue.advance(1 << 61)


class StillRunning(Engine):
    def finish(self, end_ns: int) -> None:
        self.ledger.running += 1
        super().finish(end_ns)


class WrongWindow(Engine):
    def finish(self, end_ns: int) -> None:
        super().finish(end_ns)
        duration_ns, live, *others = self.recorder.loaded
        self.recorder.loaded = (
            duration_ns,
            live,
            others[0] + 1,
            others[1] + 1,
            others[2] + 1,
            *others[3:],
        )


@pytest.mark.parametrize(
    ("engine_type", "paranoid", "message"),
    [
        (WrongLive, True, r"INV-1: \d+ tokens are committed, the total says \d+"),
        (WrongGranted, True, r"INV-1: sequences hold \d+ slots, the total says \d+"),
        (WrongGranted, False, r"INV-1: granted \d+ \+ free \d+ \+ cached 0 slot-ns are"),
        (LiveAboveUseful, False, r"INV-1: live \d+, below E \d+, asked \d+, granted \d+ slot-ns"),
        (ForgotsTheRest, False, r"INV-5: requests \[0, 1, 2, 3, 4\] of 6 never ended"),
        (StillRunning, False, r"INV-8: totals \(0, 0, 0, 0, 1, 0\) are left"),
        (WrongWindow, False, r"INV-1: parts .* add up to \d+, the pool is \d+"),
    ],
)
def test_a_faulty_engine_is_caught(
    engine_type: type[Engine], paranoid: bool, message: str, tmp_path: Path
) -> None:
    config = setting("paged", cost="constant:25000000")
    with pytest.raises(AssertionError, match=message):
        simulate(TRACE, config, tmp_path, engine_type=engine_type, paranoid=paranoid)


class BackwardExecutor(CostExecutor):
    def execute(self, plan: Plan) -> Seq[int]:
        return [plan.start_ns - 1]


def test_a_clock_that_goes_back_is_caught(tmp_path: Path) -> None:
    with (
        patch.object(SIMULATE_MODULE, "CostExecutor", BackwardExecutor),
        pytest.raises(AssertionError, match="INV-4: a step of 0 ns ended at -1 ns"),
    ):
        simulate(TRACE, setting("paged"), tmp_path)
    gaps = GapHistogram()
    with pytest.raises(AssertionError, match="INV-4: gaps of 5 ns, and later of -1 ns"):
        gaps.add((3, 8, 7), 1)
    gaps.add_one(-1, 1)
    with pytest.raises(AssertionError, match="INV-4: a gap of -1 ns"):
        gaps.mean_ms()


class RecomputesEngine(WatchedEngine):
    """Counts the first chunk of every request twice."""

    def _watch(self, plan: Plan) -> None:
        super()._watch(plan)
        for seq, num_tokens in plan.chunks:
            self.computed[seq.row] += num_tokens


def test_a_position_computed_twice_is_caught(tmp_path: Path) -> None:
    with (
        patch.object(SIMULATE_MODULE, "CostExecutor", OneStepExecutor),
        pytest.raises(AssertionError, match=r"INV-[47]: "),
    ):
        simulate(TRACE, setting("paged"), tmp_path, engine_type=RecomputesEngine)


@pytest.mark.parametrize("policy", ["static", "orca-oracle", "contiguous", "paged", "no-cache"])
def test_the_same_setting_without_a_fault_runs(policy: str, tmp_path: Path) -> None:
    with patch.object(SIMULATE_MODULE, "CostExecutor", OneStepExecutor):
        summary = simulate(
            TRACE,
            setting(policy),
            tmp_path,
            engine_type=WatchedEngine,
            paranoid=True,
            decisions=True,
        )
    assert summary["num_finished"] == TRACE.num_requests
    if policy in ("contiguous", "paged"):
        assert summary["preemptions"] > 0, "nothing runs out: the faults above may stay unseen"
