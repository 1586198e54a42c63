"""Content as pieces of streams, shared prefixes and blocks, against token lists compared one by one."""

from itertools import pairwise

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.traces import (
    Content,
    ReadOptions,
    Trace,
    TraceChunk,
    content_of_block_ids,
    find_prefixes,
    open_trace,
)
from kvtwin.traces.formats.mooncake_writer import write_mooncake

Token = tuple[object, int]


def trace_of(
    rows: list[list[tuple[int, int, int]]], prompts: list[int], outputs: list[int], cut: int
) -> Trace:
    """Two chunks, cut before row `cut`."""
    chunks = []
    for a, b in ((0, cut), (cut, len(rows))):
        if a < b:
            pieces = np.array([p for row in rows[a:b] for p in row], np.int64).reshape(-1, 3)
            content = Content(1, np.cumsum([0, *map(len, rows[a:b])]), *pieces.T)
            zeros = np.zeros(b - a, np.int64)
            chunks.append(
                TraceChunk(
                    zeros, np.array(prompts[a:b]), np.array(outputs[a:b]), zeros - 1, content
                )
            )
    return Trace("t", "any", tuple(chunks))


@st.composite
def traces(draw: st.DrawFn) -> tuple[Trace, list[list[Token]]]:
    """A trace of few streams, so that much is shared, and the tokens of each request."""
    piece = st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(1, 5))
    rows = draw(st.lists(st.lists(piece, max_size=4), min_size=1, max_size=8))
    tokens: list[list[Token]] = []
    prompts, outputs = [], []
    for row, pieces in enumerate(rows):
        known: list[Token] = [(s, a + i) for s, a, n in pieces for i in range(n)]
        room = max(len(known), 2) + draw(st.integers(0, 3))
        outputs.append(draw(st.integers(1, room - 1)))
        prompts.append(room - outputs[-1])
        own: list[Token] = [(f"own {row}", i) for i in range(room - len(known))]
        tokens.append((known + own)[: room - 1])
    return trace_of(rows, prompts, outputs, draw(st.integers(0, len(rows)))), tokens


def common(one: list[Token], other: list[Token]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@settings(max_examples=examples(200))
@given(case=traces())
def test_prefixes_are_those_of_the_first_owner(case: tuple[Trace, list[list[Token]]]) -> None:
    trace, tokens = case
    prefixes = find_prefixes(trace)
    for row, mine in enumerate(tokens):
        a, b = prefixes.offsets[row : row + 2].tolist()
        owner_of: list[int] = []
        for owner, end in zip(prefixes.owners[a:b], prefixes.ends[a:b], strict=True):
            owner_of += [int(owner)] * (int(end) - len(owner_of))
        wanted = []
        for place in range(len(mine)):
            first = next(o for o in range(row + 1) if common(tokens[o], mine) > place)
            if first == row:
                break
            wanted.append(first)
        assert owner_of == wanted
        owners = prefixes.owners[a:b]
        assert (owners[1:] != owners[:-1]).all()  # a segment for each owner, not more
    seen = [max((common(mine, t) for t in tokens[:i]), default=0) for i, mine in enumerate(tokens)]
    assert prefixes.num_seen_tokens().tolist() == seen


@settings(max_examples=examples(200))
@given(case=traces(), block_tokens=st.integers(1, 5), data=st.data())
def test_blocks_are_equal_iff_all_before_them_is(
    case: tuple[Trace, list[list[Token]]], block_tokens: int, data: st.DataObject
) -> None:
    """Of as many tokens of each request as anybody asks for: the first to have a block may not be asked for it."""
    trace, whole = case
    tokens = [mine[: data.draw(st.integers(0, len(mine)))] for mine in whole]
    num_tokens = np.array([len(mine) for mine in tokens])
    offsets, ids = find_prefixes(trace).block_ids(num_tokens, block_tokens)
    meaning: dict[int, tuple[Token, ...]] = {}
    for row, mine in enumerate(tokens):
        blocks = ids[offsets[row] : offsets[row + 1]].tolist()
        assert len(blocks) == len(mine) // block_tokens
        for place, block in enumerate(blocks, 1):
            prefix = tuple(mine[: place * block_tokens])
            assert meaning.setdefault(block, prefix) == prefix
    assert len(set(meaning.values())) == len(meaning)


def test_blocks_first_seen_in_an_answer_are_nobody_elses() -> None:
    """Request 0 has its third block in its answer, and request 1 is a stranger; 2 and 3 share more with 0."""
    rows = [[(0, 0, 6)], [(1, 0, 4)], [(0, 0, 6)], [(0, 0, 6)]]
    trace = trace_of(rows, [3, 4, 6, 6], [4, 1, 1, 1], 4)
    offsets, ids = find_prefixes(trace).block_ids(np.array([3, 4, 6, 6]), 2)
    of_row = [ids[a:b].tolist() for a, b in pairwise(offsets)]
    assert of_row[2] == of_row[3]
    assert of_row[2][:1] == of_row[0]
    assert len({*of_row[1], *of_row[2]}) == 5


@given(case=traces(), block_tokens=st.integers(1, 4))
def test_mooncake_ids_share_the_full_blocks_that_are_shared(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[Trace, list[list[Token]]],
    block_tokens: int,
) -> None:
    trace, tokens = case
    prompts = np.concatenate([chunk.num_prompt_tokens for chunk in trace.chunks]).tolist()
    path = tmp_path_factory.getbasetemp() / "blocks.jsonl"
    with path.open("wb") as file:
        write_mooncake(trace, file, block_tokens)
    back = open_trace(path, "mooncake", ReadOptions(block_tokens=block_tokens))
    seen = find_prefixes(back).num_seen_tokens() // block_tokens
    # What an earlier request shares only with its output is in nobody's ids.
    heads = [mine[:prompt] for mine, prompt in zip(tokens, prompts, strict=True)]
    shared = [max((common(h, o) for o in heads[:i]), default=0) for i, h in enumerate(heads)]
    assert seen.tolist() == [n // block_tokens for n in shared]


def test_block_ids_become_pieces_by_hand() -> None:
    # Ceil: 10 tokens in blocks of 4 have ids 3, 4 and 9, the last of which is half full.
    ids = np.array([3, 4, 9, 3, 2**64 - 1], dtype=np.uint64)
    content = content_of_block_ids(4, ids, np.array([0, 3, 3, 5]), np.array([10, 7, 8]))
    assert content.offsets.tolist() == [0, 2, 2, 4]
    assert content.streams.tolist() == [0, 0, 0, 2**33 - 1]
    assert content.starts.tolist() == [12, 36, 12, (2**31 - 1) * 4]
    assert content.num_tokens.tolist() == [8, 2, 4, 4]
    assert content.num_known_tokens().tolist() == [10, 0, 8]
    # Floor: 10 tokens have two ids, and the rest is nobody else's.
    assert content_of_block_ids(
        4, ids[:2], np.array([0, 2]), np.array([10])
    ).num_tokens.tolist() == [8]


def test_neighbouring_ids_across_a_stream_are_not_one_piece() -> None:
    ids = np.array([2**31 - 1, 2**31], dtype=np.uint64)
    content = content_of_block_ids(16, ids, np.array([0, 2]), np.array([32]))
    assert content.streams.tolist() == [0, 1]
    assert content.starts.tolist() == [(2**31 - 1) * 16, 0]
    # The next place, but of another stream.
    ids = np.array([5, 2**31 + 6], dtype=np.uint64)
    content = content_of_block_ids(16, ids, np.array([0, 2]), np.array([32]))
    assert content.streams.tolist() == [0, 1]


def test_scopes_keep_equal_ids_apart() -> None:
    ids = np.array([5, 5, 5], dtype=np.uint64)
    offsets, prompts = np.array([0, 1, 2, 3]), np.array([16, 16, 16])
    content = content_of_block_ids(16, ids, offsets, prompts, np.array([0, 1, 0]))
    zeros = np.zeros(3, np.int64)
    trace = Trace("t", "any", (TraceChunk(zeros, prompts, zeros + 1, zeros - 1, content),))
    assert find_prefixes(trace).num_seen_tokens().tolist() == [0, 0, 16]
    with pytest.raises(AssertionError, match="the limit is"):
        content_of_block_ids(16, ids, offsets, prompts, 2**30)


def test_the_last_output_token_is_never_shared() -> None:
    """Its KV is not computed: of 3 + 2 tokens, the second request finds 4."""
    rows = [[(0, 0, 5)], [(0, 0, 6)]]
    trace = trace_of(rows, [3, 6], [2, 1], 1)
    assert find_prefixes(trace).num_seen_tokens().tolist() == [0, 4]


def test_take_keeps_the_pieces_of_rows() -> None:
    rows = [[(0, 0, 1)], [(1, 0, 2), (1, 5, 1)], [], [(2, 0, 3)]]
    (chunk,) = trace_of(rows, [4] * 4, [1] * 4, 0).chunks
    taken = chunk.take(np.array([1, 2, 3])).content
    assert taken is not None
    assert taken.offsets.tolist() == [0, 2, 2, 3]
    assert taken.streams.tolist() == [1, 1, 2]
    assert taken.num_tokens.tolist() == [2, 1, 3]
