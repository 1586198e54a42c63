"""Identity of full blocks: equal if and only if all tokens up to the block's end are, without a hash of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..prompts import Pieces, first_pieces, num_known_tokens

# (first token, number of tokens): consecutive integers, one a token, equal where the tokens are.
Span = tuple[int, int]
STREAM_BITS = 40  # a stream has room for so many positions, as powers of two


def spans_of(pieces: Iterable[tuple[int, int, int]], stream_bits: int = STREAM_BITS) -> list[Span]:
    """Pieces (stream, start, number of tokens) as spans, those that continue one another joined."""
    spans: list[Span] = []
    first = num = 0
    for stream, start, num_tokens in pieces:
        token = (stream << stream_bits) + start
        if num and token == first + num:
            num += num_tokens
            continue
        if num:
            spans.append((first, num))
        first, num = token, num_tokens
    if num:
        spans.append((first, num))
    return spans


def spans_of_request(
    pieces: Pieces, row: int, num_prompt_tokens: int, num_tokens: int, branch: int = 0
) -> list[Span]:
    """What the first `num_tokens` tokens of one of its sequences are; what `pieces` do not say is like nothing else.

    Of the answer of any but the first sequence they say nothing.
    """
    known = first_pieces(pieces, num_prompt_tokens if branch else num_tokens)
    begin = num_known_tokens(known)
    if begin < num_tokens:
        # Streams of a trace are not negative.
        prompt_end = max(begin, num_prompt_tokens) if branch else num_tokens
        known = (*known, (-(row + 1), 0, prompt_end - begin))
        if prompt_end < num_tokens:
            known = (*known, (-(row + 1) - (branch << STREAM_BITS), 0, num_tokens - prompt_end))
    return spans_of(piece for piece in known if piece[2])


def tokens_of(spans: Iterable[Span], begin: int, end: int) -> Iterator[int]:
    """The tokens at positions [begin, end)."""
    position = 0
    for first, num in spans:
        low, high = max(begin - position, 0), min(end - position, num)
        yield from range(first + low, first + high)
        position += num
        if position >= end:
            return


class Chains:
    """Numbers the full blocks of token sequences so that equal prefixes get equal numbers.

    Blocks inside one span are numbered consecutively, so what is remembered grows with the number of spans, not of
    blocks: the number of the first block by (number of the block before it, its first token), and that of a block
    which several spans share by (number before it, its spans). Spans that could be joined must have been, so that
    equal tokens are cut alike.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._numbers: dict[tuple[int, int] | tuple[int, tuple[Span, ...]], int] = {}

    def _number(self, key: tuple[int, int] | tuple[int, tuple[Span, ...]]) -> int:
        # A span has fewer than 2**32 blocks.
        return self._numbers.setdefault(key, (len(self._numbers) + 1) << 32)

    def numbers(self, spans: Iterable[Span]) -> list[int]:
        """The number of each full block; never 0."""
        block_size, numbers, parent = self._block_size, list[int](), 0
        begun: list[Span] = []  # of a block that several spans share
        num_begun = 0
        for first, num in spans:
            if num_begun:
                taken = min(block_size - num_begun, num)
                begun.append((first, taken))
                num_begun += taken
                if num_begun < block_size:
                    continue
                parent = self._number((parent, tuple(begun)))
                numbers.append(parent)
                begun, num_begun = [], 0
                first, num = first + taken, num - taken
            num_blocks = num // block_size
            if num_blocks:
                parent = self._number((parent, first))
                numbers += range(parent, parent + num_blocks)
                parent += num_blocks - 1
                first, num = first + num_blocks * block_size, num - num_blocks * block_size
            if num:
                begun, num_begun = [(first, num)], num
        return numbers
