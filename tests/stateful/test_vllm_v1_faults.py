"""Faults planted into the V1 pool: the recount names the invariant."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from random_cases import config_of, trace_of

from kvtwin.sim import simulate
from kvtwin.sim.vllm_v1.block_pool import BlockPool
from kvtwin.sim.vllm_v1.engine import V1Engine


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
