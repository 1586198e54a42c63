"""Where prefix hits are lost, on traces whose every part is known."""

import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import trace_of, traces

from kvtwin.traces import Trace, find_prefixes, prefix_hits
from kvtwin.traces.hit_losses import find_hit_losses

BLOCK = 16


def alike(shared: int, *prompts: int, output: int = 1) -> Trace:
    """Prompts of these lengths that share their first `shared` tokens, or as many as they have."""
    requests = [(row, num_prompt, output) for row, num_prompt in enumerate(prompts)]
    contents = []
    for row, num_prompt in enumerate(prompts):
        common = min(shared, num_prompt)
        own = ((row + 1, 0, num_prompt - common),) if num_prompt > common else ()
        contents.append(((0, 0, common), *own) if common else own)
    return trace_of(requests, contents)


def test_each_loss_is_counted_where_it_arises() -> None:
    """240 shared tokens are 15 blocks; a prompt of just them has its last block computed again."""
    losses = find_hit_losses(alike(250, 300, 300, 240, 300), BLOCK, None)
    assert losses.num_prompt_tokens == 1140
    assert losses.num_infinite_hit_tokens == 250 + 240 + 250
    assert losses.lost_to_blocks == 2 * (250 - 240)
    assert losses.lost_to_last_token == BLOCK
    assert (losses.lost_to_capacity, losses.lost_to_order) == (0, 0)
    assert losses.num_hit_tokens == 240 + 224 + 240
    assert losses.reason is None


def test_what_capacity_and_order_lose() -> None:
    """Two chats in turn, of 4 blocks each: room for 6 keeps one whole and half of the other at best, LRU less."""
    chats = [(row, 4 * BLOCK + 1, 1) for row in range(10)]
    contents = [((row % 2, 0, 4 * BLOCK),) for row in range(10)]
    trace = trace_of(chats, contents)
    everything = find_hit_losses(trace, BLOCK, None)
    assert everything.num_hit_tokens == 8 * 4 * BLOCK
    losses = find_hit_losses(trace, BLOCK, 6)
    # LRU: whoever comes next has what room is left by the other's 4 blocks and its own.
    assert losses.num_hit_tokens < everything.num_hit_tokens - losses.lost_to_capacity
    assert losses.lost_to_order > 0
    assert losses.lost_to_capacity > 0
    total = losses.num_hit_tokens + losses.lost_to_capacity + losses.lost_to_order
    assert total == everything.num_hit_tokens
    roomy = find_hit_losses(trace, BLOCK, 1000)
    assert (roomy.lost_to_capacity, roomy.lost_to_order) == (0, 0)
    assert roomy.num_hit_tokens == everything.num_hit_tokens


@pytest.mark.parametrize(
    ("trace", "block_tokens", "num_blocks", "reason"),
    [
        (alike(240, 300, 300), 784, None, "longest shared prefix 240, block 784"),
        (alike(0, 300, 300), 16, None, "no two prompts are known to begin alike"),
        (
            trace_of([(0, 9, 9)] * 2),
            16,
            None,
            "the trace does not say what its prompts are made of",
        ),
        (
            alike(16, 16, 16),
            16,
            None,
            "longest shared prefix 16, block 16: it is a whole prompt, and the last token of a prompt is computed",
        ),
        (
            alike(64, 80, 80, output=200),
            16,
            4,
            None,
        ),
    ],
)
def test_why_nothing_hits(
    trace: Trace, block_tokens: int, num_blocks: int | None, reason: str | None
) -> None:
    losses = find_hit_losses(trace, block_tokens, num_blocks)
    assert losses.reason == reason
    assert (losses.num_hit_tokens == 0) == (reason is not None)


def test_evicted_before_it_is_used_again() -> None:
    """Three chats in turn and room for one of them: LRU keeps none, the best order one."""
    trace = trace_of([(row, 33, 1) for row in range(9)], [((row % 3, 0, 32),) for row in range(9)])
    losses = find_hit_losses(trace, 16, 2)
    assert losses.num_hit_tokens == 0
    assert losses.lost_to_order > 0
    assert losses.reason == (
        "the cache has 2 blocks: what is shared is evicted before it is used again"
    )


def num_common(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@settings(max_examples=examples(100))
@given(
    trace=traces(most=12, longest=20, with_content=True),
    block_tokens=st.integers(1, 5),
    num_blocks=st.integers(1, 20),
)
def test_every_loss_against_lists_of_tokens(
    trace: Trace, block_tokens: int, num_blocks: int
) -> None:
    """Answers are cached, and hit by longer prompts; of the last output token no KV is ever computed."""
    (chunk,) = trace.chunks
    prompts, outputs = chunk.num_prompt_tokens.tolist(), chunk.num_output_tokens.tolist()
    columns = [chunk.content.streams, chunk.content.starts, chunk.content.num_tokens]
    pieces = list(zip(*(column.tolist() for column in columns), strict=True))
    offsets = chunk.content.offsets.tolist()
    earlier: list[list[tuple[int, int]]] = []
    used: list[tuple[tuple[int, int], ...]] = []  # blocks, each as all up to its end; oldest first
    seen, full, usable, hits = [], 0, 0, 0
    for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        known = [
            (s, a + i) for s, a, n in pieces[offsets[row] : offsets[row + 1]] for i in range(n)
        ]
        own = [(-1 - row, i) for i in range(prompt + output)]
        tokens = (known + own)[: prompt + output - 1]
        shared = [num_common(tokens[:prompt], other) for other in earlier]
        seen.append(max(shared, default=0))
        full += seen[-1] // block_tokens
        most = min(seen[-1], prompt - 1) // block_tokens
        usable += most
        ends = range(block_tokens, len(tokens) + 1, block_tokens)
        blocks = [tuple(tokens[:end]) for end in ends]
        missing = [place for place, block in enumerate(blocks) if block not in used]
        hits += min(missing[0] if missing else len(blocks), most)
        used = [block for block in used if block not in blocks] + blocks[::-1]
        used = used[max(0, len(used) - num_blocks) :]
        earlier.append(tokens)
    losses = find_hit_losses(trace, block_tokens, num_blocks)
    assert losses.longest_shared_prefix == max(seen)
    assert losses.num_infinite_hit_tokens == sum(seen)
    assert losses.lost_to_blocks == sum(seen) - full * block_tokens
    assert losses.lost_to_last_token == (full - usable) * block_tokens
    assert losses.lost_to_capacity + losses.lost_to_order == (usable - hits) * block_tokens
    assert losses.num_hit_tokens == hits * block_tokens


def test_the_first_steps_agree_with_trace_info() -> None:
    """Two ways to count full blocks of an infinite cache."""
    trace = alike(250, 300, 300, 240, 300)
    (_, full) = prefix_hits(trace, BLOCK)
    losses = find_hit_losses(trace, BLOCK, None)
    assert losses.num_infinite_hit_tokens - losses.lost_to_blocks == full.num_hit_tokens
    assert losses.num_infinite_hit_tokens == int(find_prefixes(trace).num_seen_tokens().sum())


def test_the_conversation_trace(shared_dir) -> None:
    from kvtwin.traces import open_trace

    trace = open_trace(shared_dir / "traces/mooncake/conversation_trace.slice.jsonl")
    losses = find_hit_losses(trace, 512, 30_000)
    # Of the trace's own ids, a partial last one included, 20,929,408 tokens hit.
    assert losses.num_prompt_tokens == 61_644_461
    assert losses.num_infinite_hit_tokens == 20_929_408
    assert losses.lost_to_order > losses.lost_to_capacity
