"""Scores hundreds of powers of two apart: what a softmax without its running maximum cannot hold.

One key in a random tile has a score of +-400; the others are near 0. Weights are then 0 and 1 to
fp32, so the outputs are known exactly.
"""

from typing import Any

import pytest
import torch

from kvtwin.gpu.arguments import SplitPlan, Tuning

HEAD_DIM, BLOCK_SIZE, CONTEXT_LEN, TILE = 64, 8, 48, 16
LARGE = 400.0


def inputs(strong_token: int, sign: float) -> dict[str, torch.Tensor]:
    """One sequence of 48 tokens whose scores are 0 but for one; V of token t is t + 1."""
    k_pool = torch.zeros(6, BLOCK_SIZE, 1, HEAD_DIM)
    k_pool.view(-1, HEAD_DIM)[strong_token, 0] = sign * LARGE
    v_pool = torch.arange(1.0, CONTEXT_LEN + 1).view(6, BLOCK_SIZE, 1, 1).expand(k_pool.shape)
    return {
        "k_pool": k_pool.half(),
        "v_pool": v_pool.half().contiguous(),
        "block_tables": torch.arange(6, dtype=torch.int32)[None],
        "context_lens": torch.tensor([CONTEXT_LEN], dtype=torch.int32),
    }


def unit_query(num_tokens: int) -> torch.Tensor:
    query = torch.zeros(num_tokens, 1, HEAD_DIM)
    query[..., 0] = 1.0
    return query.half()


@pytest.fixture
def ops(on: dict[str, Any], request: pytest.FixtureRequest) -> Any:
    return on[request.param].ops


BACKENDS = pytest.mark.parametrize("ops", ["triton-interpret", "torch"], indirect=True)
STRONG_TOKENS = pytest.mark.parametrize("strong_token", [0, 20, CONTEXT_LEN - 1])


@BACKENDS
@STRONG_TOKENS
@pytest.mark.parametrize("num_splits", [1, 3])
def test_paged_decode_of_one_key_that_outweighs_all(
    ops: Any, strong_token: int, num_splits: int
) -> None:
    out = ops.paged_decode(
        unit_query(1),
        **inputs(strong_token, 1.0),
        scale=1.0,
        split=SplitPlan(num_splits, min_split_tokens=1),
        tuning=Tuning(TILE, 4, 2),
    )
    assert out.unique().tolist() == [strong_token + 1]


@BACKENDS
@STRONG_TOKENS
@pytest.mark.parametrize("num_splits", [1, 3])
def test_paged_decode_of_one_key_that_weighs_nothing(
    ops: Any, strong_token: int, num_splits: int
) -> None:
    out = ops.paged_decode(
        unit_query(1),
        **inputs(strong_token, -1.0),
        scale=1.0,
        split=SplitPlan(num_splits, min_split_tokens=1),
        tuning=Tuning(TILE, 4, 2),
    )
    others = [token + 1 for token in range(CONTEXT_LEN) if token != strong_token]
    mean = sum(others) / len(others)
    # Two roundings of a number below 32: half a unit of 2^-6 each.
    assert (out.double() - mean).abs().max() <= 2.0**-6


@BACKENDS
@STRONG_TOKENS
def test_paged_prefill_of_one_key_that_outweighs_all(ops: Any, strong_token: int) -> None:
    out = ops.paged_prefill(
        unit_query(CONTEXT_LEN),
        **inputs(strong_token, 1.0),
        query_starts=torch.tensor([0, CONTEXT_LEN], dtype=torch.int32),
        scale=1.0,
        tuning=Tuning(TILE, 4, 2, query_rows=16),
    )
    for token in range(strong_token, CONTEXT_LEN):
        assert out[token].unique().tolist() == [strong_token + 1]
    for token in range(strong_token):
        # All earlier keys score 0: the mean of 1 to token + 1.
        assert (out[token].double() - (token + 2) / 2).abs().max() <= 2.0**-6


@BACKENDS
@pytest.mark.parametrize("num_splits", [1, 3])
def test_paged_decode_with_sinks_that_weigh_nothing(ops: Any, num_splits: int) -> None:
    """A sink of -inf is none, for a sequence without tokens, too."""
    arguments = inputs(20, 1.0)
    arguments["block_tables"] = arguments["block_tables"].repeat(2, 1)
    arguments["context_lens"] = torch.tensor([CONTEXT_LEN, 0], dtype=torch.int32)
    out = ops.paged_decode(
        unit_query(2),
        **arguments,
        scale=1.0,
        sinks=torch.full((1,), -torch.inf),
        split=SplitPlan(num_splits, min_split_tokens=1),
        tuning=Tuning(TILE, 4, 2),
    )
    assert out[0].unique().tolist() == [21]
    assert out[1].unique().tolist() == [0]


@BACKENDS
def test_paged_prefill_with_sinks_that_weigh_nothing(ops: Any) -> None:
    """The second row is padding, behind the last sequence."""
    out = ops.paged_prefill(
        unit_query(2),
        **inputs(20, 1.0),
        query_starts=torch.tensor([0, 1], dtype=torch.int32),
        scale=1.0,
        sinks=torch.full((1,), -torch.inf),
        tuning=Tuning(TILE, 4, 2, query_rows=16),
    )
    assert out[0].unique().tolist() == [21]
    assert out[1].unique().tolist() == [0]


@BACKENDS
def test_paged_prefill_of_rows_that_see_nothing_of_the_first_tile(ops: Any) -> None:
    """A window of 3 in a query tile of 48: late rows see their first key in the third tile of 16."""
    out = ops.paged_prefill(
        unit_query(CONTEXT_LEN),
        **inputs(0, 0.0),
        query_starts=torch.tensor([0, CONTEXT_LEN], dtype=torch.int32),
        scale=1.0,
        window=3,
        tuning=Tuning(TILE, 4, 2, query_rows=64),
    )
    # All scores are 0: the mean of token - 1, token and token + 1.
    for token in range(2, CONTEXT_LEN):
        assert out[token].unique().tolist() == [token]
