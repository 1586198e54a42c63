"""What prompts have in common, against token by token comparison."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from naive_places import tokens_of
from random_cases import content_of, prompt_pieces, trace_of, traces

from kvtwin.sim.prompts import (
    Pieces,
    first_pieces,
    num_common_tokens,
    num_known_tokens,
    prompts_of,
)
from kvtwin.traces import Trace, TraceChunk
from kvtwin.traces.prefixes import find_prefixes


def common_by_token(pieces: Pieces, others: Pieces) -> int:
    mine, theirs = tokens_of(pieces, 0, 0), tokens_of(others, 1, 0)
    equal = [one == other for one, other in zip(mine, theirs, strict=False)]
    return [*equal, False].index(False)


def test_common_tokens_by_hand() -> None:
    assert num_common_tokens((), ((0, 0, 3),)) == 0
    assert num_common_tokens(((0, 0, 5), (1, 0, 2)), ((0, 0, 2), (0, 2, 3), (1, 0, 9))) == 7
    assert num_common_tokens(((0, 0, 5),), ((0, 0, 3), (0, 4, 3))) == 3  # a token is left out
    assert num_common_tokens(((0, 0, 5),), ((0, 1, 5),)) == 0


@given(prompt_pieces(20), prompt_pieces(20))
def test_common_tokens(pieces: Pieces, others: Pieces) -> None:
    assert num_common_tokens(pieces, others) == common_by_token(pieces, others)


@given(prompt_pieces(20), st.integers(1, 25))
def test_first_pieces(pieces: Pieces, num_tokens: int) -> None:
    cut = first_pieces(pieces, num_tokens)
    assert tokens_of(cut, 0, 0) == tokens_of(pieces, 0, 0)[:num_tokens]
    assert num_known_tokens(cut) == len(tokens_of(cut, 0, 0))


def test_prompts_of_a_trace() -> None:
    """Content that goes on into the output is cut; a request without any, and a second chunk."""
    pieces: list[Pieces] = [((0, 0, 4), (1, 7, 3)), (), ((0, 0, 2),)]
    (chunk,) = trace_of([(0, 5, 3), (1, 4, 1), (2, 6, 1)], pieces).chunks
    later = TraceChunk(
        np.array([9]), np.array([3]), np.array([1]), np.array([-1]), content_of([((1, 0, 4),)])
    )
    trace = Trace("two chunks", "synthetic", (chunk, later))
    assert prompts_of(trace) == [((0, 0, 4), (1, 7, 1)), (), ((0, 0, 2),), ((1, 0, 3),)]
    assert prompts_of(trace_of([(0, 5, 3), (1, 4, 1)])) == [(), ()]


@given(traces(most=8, with_content=True))
def test_the_longest_of_all_before_is_what_the_prefix_tree_finds(trace: Trace) -> None:
    """Another path to the same figure; the tree also knows outputs, so requests here have none."""
    (chunk,) = trace.chunks
    prompts = [(0, int(num), 1) for num in chunk.num_prompt_tokens]
    contents = prompts_of(trace)
    seen = find_prefixes(trace_of(prompts, contents)).num_seen_tokens().tolist()
    assert seen == [
        max((num_common_tokens(mine, other) for other in contents[:row]), default=0)
        for row, mine in enumerate(contents)
    ]


def test_a_head_that_ends_with_a_piece_has_no_empty_one() -> None:
    assert first_pieces(((1, 0, 4), (2, 7, 3)), 4) == ((1, 0, 4),)
