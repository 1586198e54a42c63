"""How work is cut: splits over the KV length, and batches of moves between device and host."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.gpu.arguments import SplitPlan, SwapMove, plan_splits
from kvtwin.gpu.arguments.swaps import batches, host_runs
from kvtwin.gpu.arguments.tuning import MAX_SPLITS, MIN_SPLIT_TOKENS


@pytest.mark.parametrize(
    ("num_seqs", "context_len", "num_kv_heads", "num_splits"),
    [
        (64, 4096, 8, 1),  # 512 programs for 132 multiprocessors: enough
        (1, 131072, 8, 33),  # 264 programs wanted, 8 there
        (1, 1024, 8, 4),  # not below 256 tokens a split
        (1, 100, 8, 1),
        (16, 8192, 8, 3),  # 128 programs: 2 splits would be 256, below 264
        (1, 10**6, 1, 64),  # the most there are
    ],
)
def test_equal_lengths(num_seqs: int, context_len: int, num_kv_heads: int, num_splits: int) -> None:
    plan = plan_splits(num_seqs * context_len, context_len, num_kv_heads, 132)
    assert plan == SplitPlan(num_splits, MIN_SPLIT_TOKENS)


def test_one_long_sequence_among_short_ones_is_split() -> None:
    """255 contexts of 100 tokens and one of 100,000, 8 KV heads: its share of a program is 3,803."""
    total = 255 * 100 + 100_000
    assert plan_splits(total, 100_000, 8, 132).num_splits == -(-100_000 // -(-total * 8 // 264))


@given(st.integers(0, 10**7), st.integers(0, 10**6), st.integers(1, 128), st.integers(1, 200))
def test_a_plan_is_never_out_of_range(
    total: int, longest: int, heads: int, processors: int
) -> None:
    plan = plan_splits(total, longest, heads, processors)
    assert 1 <= plan.num_splits <= MAX_SPLITS
    assert plan.num_splits == 1 or (plan.num_splits - 1) * MIN_SPLIT_TOKENS < longest


OUT, IN = (lambda d, h: SwapMove(True, d, h)), (lambda d, h: SwapMove(False, d, h))


@pytest.mark.parametrize(
    ("moves", "wanted"),
    [
        ([], []),
        ([OUT(1, 0), OUT(2, 1), OUT(1, 2)], [3]),
        ([OUT(1, 0), IN(2, 0), OUT(3, 0)], [1, 1, 1]),  # directions alternate
        ([OUT(1, 0), OUT(2, 0)], [1, 1]),  # a host block written twice
        ([IN(1, 0), IN(1, 1), IN(2, 0)], [1, 2]),  # a device block written twice
        ([IN(1, 0), IN(2, 0)], [2]),  # read twice is no conflict
    ],
)
def test_batches_of_moves(moves: list[SwapMove], wanted: list[int]) -> None:
    found = list(batches(moves))
    assert [len(batch) for batch in found] == wanted
    assert [move for batch in found for move in batch] == moves


def test_runs_of_host_blocks() -> None:
    moves = [OUT(0, host) for host in (4, 5, 6, 8, 7, 8, 9, 0)]
    assert list(host_runs(moves)) == [(0, 3), (3, 4), (4, 7), (7, 8)]
