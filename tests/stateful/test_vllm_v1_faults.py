"""Faults planted into the V1 pool: the recount names the invariant."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from random_cases import config_of, trace_of

from kvtwin.sim import PolicySettings, simulate
from kvtwin.sim.vllm_v1.block_pool import NULL_BLOCK, BlockPool
from kvtwin.sim.vllm_v1.engine import V1Engine
from kvtwin.sim.vllm_v1.policy import VllmV1
from kvtwin.sim.vllm_v1.request import Request
from kvtwin.sim.vllm_v1.scheduler import Scheduler
from kvtwin.sim.vllm_v1.settings import SchedulerSettings


def count_one_more(pool: BlockPool, held: int, free: int) -> None:
    pool.references[held] += 1


def free_what_is_held(pool: BlockPool, held: int, free: int) -> None:
    pool.free[held] = None


def lose_a_free_block(pool: BlockPool, held: int, free: int) -> None:
    del pool.free[free]


def hold_the_null_block(pool: BlockPool, held: int, free: int) -> None:
    pool.free[0] = None


def forget_where_a_key_is(pool: BlockPool, held: int, free: int) -> None:
    pool.by_key.popitem()


def give_a_key_to_nobody(pool: BlockPool, held: int, free: int) -> None:
    pool.keys[free] = 12345


def mix_up_two_keys(pool: BlockPool, held: int, free: int) -> None:
    first, second, *_ = (block for block, key in enumerate(pool.keys) if key)
    pool.keys[first], pool.keys[second] = pool.keys[second], pool.keys[first]


def cache_one_more(pool: BlockPool, held: int, free: int) -> None:
    pool.num_cached_free += 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (count_one_more, "INV-3: block"),
        (free_what_is_held, "INV-2: block"),
        (lose_a_free_block, "INV-1: "),
        (hold_the_null_block, "INV-2: block 0 is free and held"),
        (forget_where_a_key_is, "INV-2: "),
        (give_a_key_to_nobody, "INV-2: "),
        (mix_up_two_keys, r"INV-2: \d+ blocks can be found, \d+ have a key, or others"),
        (cache_one_more, "INV-1: "),
    ],
)
def test_a_fault_is_named(
    fault: Callable[[BlockPool, int, int], None], message: str, tmp_path: Path
) -> None:
    class Faulty(V1Engine):
        def check(self) -> None:
            if self.step == 3:
                held = self.holders()[0].tables[0][0]
                fault(self.policy.pool, held, next(reversed(self.policy.pool.free)))
            super().check()

    def run(engine_type: Any) -> None:
        config = config_of("vllm-v1", num_gpu_blocks_override=20, block_size=2)
        trace = trace_of([(0, 4, 9)] * 2, [((1, 0, 4),)] * 2)
        simulate(trace, config, tmp_path, engine_type=engine_type, paranoid=True)

    run(V1Engine)
    with pytest.raises(AssertionError, match=message):
        run(Faulty)


@pytest.mark.parametrize(("asked", "granted"), [(-2, 0), (2, 0), (0, -2), (0, 2)])
def test_totals_that_are_not_those_of_the_tables_are_named(
    asked: int, granted: int, tmp_path: Path
) -> None:
    """A prompt of 4 has 2 blocks of 2; the null block is granted, too, and asked for by nobody."""

    class Faulty(V1Engine):
        def check(self) -> None:
            self.ledger.asked += asked
            self.ledger.granted += granted
            super().check()

    config = config_of("vllm-v1", num_gpu_blocks_override=20, block_size=2)
    said = f"the totals say {6 + granted} and {4 + asked}"
    message = f"INV-1: tables hold blocks of 6 slots, 4 of them asked for; {said}"
    with pytest.raises(AssertionError, match=message):
        simulate(trace_of([(0, 4, 9)]), config, tmp_path, engine_type=Faulty, paranoid=True)


def test_a_null_block_in_a_table_is_named() -> None:
    """Of full attention no block is out of sight."""
    policy = VllmV1(PolicySettings(16, max_model_len=8, block_size=2))
    request = Request(0, 3, 1, 8)
    request.tables = [policy.pool.take(2)]
    policy.check([request])
    policy.pool.release(request.tables[0][:1])
    request.tables[0][0] = NULL_BLOCK
    policy.pool.references[NULL_BLOCK] = 1
    with pytest.raises(AssertionError, match="INV-2: 1 tables hold the null block"):
        policy.check([request])


@pytest.mark.parametrize("is_async", [False, True])
def test_a_client_that_leaves_while_its_token_is_computed_gets_none(is_async: bool) -> None:
    """Its last one, which would end it again; its blocks are free at once, and the other request goes on."""
    made = SchedulerSettings(20, max_model_len=20, block_size=2, async_scheduling=is_async)
    scheduler = Scheduler(made, BlockPool(20))
    leaving, staying = Request(0, 5, 1, 20), Request(1, 3, 2, 20)
    for request in (leaving, staying):
        request.spans = [(100 * request.row, 20)]
        scheduler.add(request)
    scheduled = scheduler.schedule()
    assert scheduled.gets_token == [True, True]
    scheduler.end(leaving)
    assert len(scheduler.cache.pool.free) == 19 - 2
    assert scheduler.update(scheduled) == []
    assert (leaving.known, staying.known) == (5, 4)
    assert scheduler.update(scheduler.schedule()) == [staying]
    assert len(scheduler.cache.pool.free) == 19
