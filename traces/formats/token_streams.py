"""Token ids as pieces of streams: requests share pieces as far as their tokens agree."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

# Which stream, from which position of it, how many tokens.
Piece = tuple[int, int, int]
_TOKEN = np.dtype("<u4")


def packed(ids: Sequence[int]) -> bytes:
    """Token ids below 2^32 as `streams_of_tokens` takes them: four bytes each."""
    return np.array(ids, dtype=_TOKEN).tobytes()


def streams_of_tokens(sequences: Sequence[bytes]) -> list[list[Piece]]:
    """The pieces of each sequence of `packed` token ids.

    Two sequences have equal pieces for the tokens of their common head, to the token, and none in
    common behind it. What they hold at other positions is not compared: a prefix cache cannot use
    it. Takes O(tokens) and a sort of the sequences.
    """
    # Equal heads are neighbours when the sequences are sorted, in whatever order of ids, so each
    # shares with the one before it all that it shares with any before it.
    pieces: list[list[Piece]] = [[] for _ in sequences]
    before, pieces_before = b"", list[Piece]()
    next_stream = 0
    for index in sorted(range(len(sequences)), key=sequences.__getitem__):
        sequence = sequences[index]
        num_shared = _common_head(before, sequence)
        mine = head(pieces_before, num_shared)
        num_new = len(sequence) // _TOKEN.itemsize - num_shared
        if num_new:
            mine.append((next_stream, num_shared, num_new))
            next_stream += 1
        pieces[index] = pieces_before = mine
        before = sequence
    return pieces


def head(pieces: Sequence[Piece], num_tokens: int) -> list[Piece]:
    """The pieces of the first `num_tokens` tokens, or of all where there are fewer."""
    kept: list[Piece] = []
    for stream, start, length in pieces:
        if num_tokens <= 0:
            break
        kept.append((stream, start, min(length, num_tokens)))
        num_tokens -= length
    return kept


def _common_head(first: bytes, second: bytes) -> int:
    length = min(len(first), len(second)) // _TOKEN.itemsize
    ids = (np.frombuffer(packed, dtype=_TOKEN, count=length) for packed in (first, second))
    differ = np.flatnonzero(np.not_equal(*ids))
    return int(differ[0]) if len(differ) else length


@dataclass
class Conversation:
    """The tokens of a conversation so far, when only their numbers are known."""

    pieces: list[Piece] = field(default_factory=list)
    num_tokens: int = 0

    def say(self, num_kept: int, num_tokens: int, new_stream: int) -> list[Piece]:
        """A call of `num_tokens` tokens, prompt and output, of which the first `num_kept` are as before.

        The others are new, also to `new_stream`, which no other content has. Returns the pieces of
        the call; the conversation goes on behind them.
        """
        num_kept = min(num_kept, self.num_tokens, num_tokens)
        num_new = num_tokens - num_kept
        if num_kept == self.num_tokens and self.pieces:  # it only grows: its last piece does
            stream, start, length = self.pieces[-1]
            self.pieces = [*self.pieces[:-1], (stream, start, length + num_new)]
        else:
            self.pieces = head(self.pieces, num_kept)
            if num_new:
                self.pieces.append((new_stream, 0, num_new))
        self.num_tokens = num_tokens
        return self.pieces
