"""What prompts are made of, so that an allocator can tell which of them begin alike."""

from __future__ import annotations

from itertools import pairwise

from kvtwin.traces import Trace

# (stream, start, number of tokens) from the first token of a prompt on: see `Content` in traces/content.py. Two tokens
# are equal if and only if stream and position are; what is behind the last piece is like no other token of the trace.
Pieces = tuple[tuple[int, int, int], ...]
UNKNOWN_PROMPT: Pieces = ()


def prompts_of(trace: Trace, with_answers: bool = False) -> list[Pieces]:
    """What is known of each prompt of a trace, by row. Content of outputs is left out, or goes on behind it."""
    prompts: list[Pieces] = []
    for chunk in trace.chunks:
        content = chunk.content
        if content is None:
            prompts += [UNKNOWN_PROMPT] * chunk.num_requests
            continue
        pieces = list(
            zip(
                content.streams.tolist(),
                content.starts.tolist(),
                content.num_tokens.tolist(),
                strict=True,
            )
        )
        offsets, lengths = content.offsets.tolist(), chunk.num_prompt_tokens.tolist()
        if with_answers:
            prompts += [tuple(pieces[begin:end]) for begin, end in pairwise(offsets)]
            continue
        for begin, end, num_tokens in zip(offsets[:-1], offsets[1:], lengths, strict=True):
            prompts.append(first_pieces(tuple(pieces[begin:end]), num_tokens))
    return prompts


def first_pieces(pieces: Pieces, num_tokens: int) -> Pieces:
    """The pieces of the first `num_tokens` tokens, at least 1."""
    left = num_tokens
    for number, (stream, start, piece_tokens) in enumerate(pieces):
        if piece_tokens >= left:
            return (*pieces[:number], (stream, start, left))
        left -= piece_tokens
    return pieces


def num_known_tokens(pieces: Pieces) -> int:
    """Tokens in all the pieces."""
    return sum(piece_tokens for _, _, piece_tokens in pieces)


def num_common_tokens(pieces: Pieces, others: Pieces) -> int:
    """Tokens of the longest common prefix. The same tokens may be cut into other pieces."""
    mine, theirs = iter(pieces), iter(others)
    num_common = left = other_left = 0
    stream = start = other_stream = other_start = 0
    while True:
        if not left:
            stream, start, left = next(mine, (0, 0, 0))
        if not other_left:
            other_stream, other_start, other_left = next(theirs, (0, 0, 0))
        num_equal = left if left < other_left else other_left
        if not num_equal or stream != other_stream or start != other_start:
            return num_common
        num_common += num_equal
        start, other_start = start + num_equal, other_start + num_equal
        left, other_left = left - num_equal, other_left - num_equal
