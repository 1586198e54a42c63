"""Parts of `vllm-v0` on their own: what its pool's check finds, what a fork decides, and the draws it lives on."""

from itertools import permutations

import numpy as np
import pytest
from example_counts import examples
from group_model import Log
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import trace_of

from kvtwin.sim import PolicySettings
from kvtwin.sim.samples import Sampling, branch_outputs
from kvtwin.sim.vllm_v0.beams import _mix, parents
from kvtwin.sim.vllm_v0.blocks import BlockPool
from kvtwin.sim.vllm_v0.group import Group
from kvtwin.sim.vllm_v0.policy import VllmV0


def test_what_was_freed_last_is_taken_first() -> None:
    pool = BlockPool("device", 5)
    assert pool.take(3) == [0, 1, 2]
    assert pool.take(0) == []
    assert pool.num_free_blocks == 2
    assert pool.drop([0, 2]) == 2
    assert pool.take(3) == [2, 0, 3]
    pool.share([3, 3])
    assert [pool.drop([3]) for _ in range(3)] == [0, 0, 1]
    with pytest.raises(AssertionError, match="3 device blocks wanted, 2 free"):
        pool.take(3)


@pytest.mark.parametrize(
    ("tables", "free", "message"),
    [
        ([[0, 1], [1]], None, None),
        ([[0, 1]], None, "INV-3: device block 1 is in 1 tables and pins, its count says 2"),
        ([[0, 1], [1], [1]], None, "INV-3: device block 1 is in 3 tables"),
        ([[0, 1], [1, 4]], None, "INV-2: b holds device block 4 of 4"),
        ([[0, 1], [-1]], None, "INV-2: b holds device block -1 of 4"),
        ([[0, 1, 1]], None, "INV-3: a holds a device block twice"),
        ([[0, 1], [1]], [3, 3], "INV-2: device block 3 is 2 times in the free list"),
        ([[0, 1], [1]], [3, 1], "INV-2: device block 1 is 1 times in the free list and in 2"),
        ([[0, 1], [1]], [3], r"INV-1: 2 device blocks held \+ 1 free = 3, the pool has 4"),
    ],
)
def test_a_recount_names_what_is_wrong(
    tables: list[list[int]], free: list[int] | None, message: str | None
) -> None:
    """Blocks 0 and 1 are held, the second by two tables, and 2 and 3 are free."""
    pool = BlockPool("device", 4)
    pool.take(2)
    pool.share([1])
    if free is not None:
        del pool._free[:]
        pool._free.extend(free)
    holders = list(zip("abc", tables, strict=False))
    if message is None:
        pool.check(holders)
        return
    with pytest.raises(AssertionError, match=message):
        pool.check(holders)


def group_of(outputs: list[int]) -> tuple[VllmV0, Group]:
    """A group of beams behind a prompt of 5, in blocks of 4."""
    policy = VllmV0(PolicySettings(80, max_model_len=80, block_size=4, num_host_slots=10))
    policy.log = Log()
    group = Group(0, 0, 5, outputs, is_beam=True)
    policy.allocate(group)
    return policy, group


def test_a_fork_gives_up_what_it_does_not_share() -> None:
    policy, group = group_of([9, 9, 9])
    first, second, third = group.branches
    policy.append(group, 5)  # the last block of the prompt: two copies, and one in place
    policy.log.clear()
    assert policy.fork(second, first) == 1
    assert [(action, branch) for action, _, _, _, branch, _ in policy.log] == [
        ("free", 1),
        ("share", 1),
    ]
    policy.log.clear()
    assert policy.fork(second, first) == 0
    assert not policy.log, "tables that are equal stay as they are"
    assert second.blocks == first.blocks != third.blocks
    assert second.blocks is not first.blocks


def test_the_host_holds_whole_blocks() -> None:
    policy, _ = group_of([2])
    assert policy.host.num_blocks == 2, "10 slots are two blocks of 4"


def test_numbers_are_those_of_splitmix64() -> None:
    """The first outputs for seed 0 in Vigna's reference implementation of Steele, Lea and Flood's generator."""
    gamma = 0x9E3779B97F4A7C15
    outputs = [_mix(step * gamma & (1 << 64) - 1) for step in range(3)]
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_seed_row_and_tokens_do_not_stand_in_for_each_other() -> None:
    """1,000 beams are drawn alike by chance never; (seed, row, tokens) in any order are draws of their own."""
    draws = [tuple(parents(*numbers, 1000)) for numbers in permutations((3, 5, 6))]
    draws += [tuple(parents(*numbers, 1000)) for numbers in ((3, 3, 3), (5, 5, 3), (6, 6, 3))]
    assert len(set(draws)) == len(draws)


@settings(max_examples=examples(100))
@given(
    requests=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 40)), min_size=1, max_size=8),
    num_samples=st.integers(1, 6),
    seed=st.integers(0, 5),
)
def test_further_samples_are_clipped_outputs_of_the_trace(
    requests: list[tuple[int, int]], num_samples: int, seed: int
) -> None:
    """A request whose prompt leaves no room has no limit to speak of; it is turned away, and one token is enough."""
    original = [output for output, _ in requests]
    most = [limit for _, limit in requests]
    clipped = [max(1, min(output, limit)) for output, limit in requests]
    trace = trace_of([(0, 1, output) for output in original])
    for sampling in (Sampling(num_samples, seed=seed), Sampling(num_samples, lengths="equal")):
        outputs = branch_outputs(trace, sampling, np.array(clipped), np.array(most))
        assert [lengths[0] for lengths in outputs] == clipped
        assert {len(lengths) for lengths in outputs} == {num_samples}
        for lengths, limit in zip(outputs, most, strict=True):
            if sampling.lengths == "equal":
                assert len(set(lengths)) == 1
            assert set(lengths[1:]) <= {min(output, max(1, limit)) for output in original} | set(
                lengths[:1] if sampling.lengths == "equal" else ()
            )


def test_further_samples_are_drawn_evenly_from_all_requests() -> None:
    """Outputs are 1 to 8; each is drawn by 1/8 of 70,000 samples, five standard deviations allowed."""
    trace = trace_of([(0, 1, output) for output in range(1, 9)] * 1000)
    (chunk,) = trace.chunks
    clipped = np.asarray(chunk.num_output_tokens)
    sampling = Sampling(num_samples=9, seed=4)
    outputs = branch_outputs(trace, sampling, clipped, np.full(len(clipped), 99))
    further = np.array([lengths[1:] for lengths in outputs])
    counts = np.bincount(further.ravel(), minlength=9)[1:]
    num = further.size
    assert abs(counts - num / 8).max() < 5 * (num * 1 / 8 * 7 / 8) ** 0.5
    # The eight of one request are no more alike than those of others.
    assert abs(np.corrcoef(further.T) - np.eye(8)).max() < 5 / len(clipped) ** 0.5
    # What a trace of this seed was drawn with is another stream.
    same_seed = np.random.default_rng(4).integers(len(clipped), size=num)
    assert (clipped[same_seed] != further.ravel()).any()
