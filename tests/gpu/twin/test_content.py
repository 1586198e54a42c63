"""Token ids and their K, V and queries: equal where sequences agree, else different, and exact."""

import numpy as np
import pytest
import torch

from kvtwin.gpu.twin.content import KINDS, ContentShape, TokenContent, TokenIds
from kvtwin.traces import Content, Trace, TraceChunk

ARRIVAL = np.zeros(1, dtype=np.int64)


def trace_of(*prompts: list[tuple[int, int, int]], num_prompt_tokens: int = 12) -> Trace:
    """A request for each list of (stream, start, number of tokens), a chunk each, outputs of 6."""
    chunks = []
    for pieces in prompts:
        streams, starts, lengths = zip(*pieces, strict=True) if pieces else ((), (), ())
        content = Content(1, *map(np.array, ([0, len(pieces)], streams, starts, lengths)))
        prompt, output = np.array([num_prompt_tokens]), np.array([6])
        chunks.append(TraceChunk(ARRIVAL, prompt, output, np.array([-1]), content=content))
    return Trace("made", "synthetic", tuple(chunks))


def num_equal(trace: Trace, one: tuple[int, int], other: tuple[int, int]) -> int:
    """Length of the common prefix of ids of two (row, branch); behind it none may be equal."""
    ids = TokenIds(trace)
    first, second = (ids.of(row, branch, 18) for row, branch in (one, other))
    num_common = int(np.argmin(np.append(first == second, False)))
    assert not np.isin(first[num_common:], second).any()
    return num_common


@pytest.mark.parametrize(
    ("first", "second", "num_common"),
    [
        ([(5, 0, 12)], [(5, 0, 12)], 12),
        ([(5, 0, 12)], [(5, 0, 4), (5, 4, 8)], 12),  # the same tokens, cut in another way
        ([(5, 0, 12)], [(5, 0, 7), (6, 7, 5)], 7),
        ([(5, 0, 7), (6, 0, 5)], [(5, 0, 7), (6, 1, 5)], 7),
        ([(5, 0, 12)], [(5, 1, 11)], 0),  # the same content elsewhere is another context
        ([(4, 0, 4), (5, 0, 8)], [(3, 0, 4), (5, 0, 8)], 0),
        ([(5, 0, 9)], [(5, 0, 9)], 9),  # what the trace does not know is like no other
        ([], [], 0),
        ([(5, 0, 15)], [(5, 0, 15)], 15),  # known into the output
        ([(5, 0, 18)], [(5, 0, 14), (7, 0, 4)], 14),
    ],
)
def test_ids_are_equal_exactly_as_far_as_contents_are(
    first: list[tuple[int, int, int]], second: list[tuple[int, int, int]], num_common: int
) -> None:
    assert num_equal(trace_of(first, second), (0, 0), (1, 0)) == num_common


def test_branches_share_the_prompt_alone() -> None:
    trace = trace_of([(5, 0, 18)], [])
    assert num_equal(trace, (0, 0), (0, 1)) == 12
    assert num_equal(trace, (0, 1), (0, 2)) == 12
    assert num_equal(trace, (1, 0), (1, 1)) == 12


def test_fewer_tokens_are_the_first_ones() -> None:
    for branch in (0, 1):
        ids = TokenIds(trace_of([(5, 0, 4), (6, 0, 11)]))
        whole = ids.of(0, branch, 18)
        assert len(np.unique(whole)) == 18
        for num_tokens in range(18):
            assert (ids.of(0, branch, num_tokens) == whole[:num_tokens]).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_values_are_exact_and_spread_and_tell_tokens_apart(dtype: torch.dtype) -> None:
    ids = torch.from_numpy(TokenIds(trace_of([])).of(0, 0, 500))
    shape = ContentShape(2, 6, 3, 64, dtype)
    content = TokenContent(shape, "cpu")
    found = {kind: content.of(ids, kind) for kind in KINDS}
    assert found["key"].shape == found["value"].shape == (2, 500, 3, 64)
    assert found["query"].shape == (2, 500, 6, 64)
    rows = []
    for values in found.values():
        assert values.dtype == dtype
        numbers = values.double()
        assert (numbers * 128 % 2 == 1).all(), "something was rounded"
        assert numbers.abs().max() < 2
        assert abs(float(numbers.mean())) < 0.01
        assert abs(float(numbers.std()) - 2 / 3**0.5) < 0.01
        assert abs(numbers.double().flatten(0, 2).mean(0)).max() < 0.1  # every channel alike
        rows.append(numbers.flatten(0, 2))
    every = torch.cat(rows)
    assert len(torch.unique(every, dim=0)) == len(every)  # (token, layer, head, kind): 12,000 rows
    assert (content.of(ids[7:9], "key", slice(1, 2)) == found["key"][1:2, 7:9]).all()
