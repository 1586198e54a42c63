"""What a server remembers that keeps every finished prompt in the place where it was computed, token by token."""

from collections.abc import Hashable
from itertools import takewhile

from kvtwin.sim.prompts import Pieces


def tokens_of(pieces: Pieces, row: int, num_tokens: int) -> list[Hashable]:
    """The tokens of a prompt, one by one. Those behind the pieces are like no other token."""
    known = [(stream, start + i) for stream, start, num in pieces for i in range(num)]
    return known + [("unknown", row, position) for position in range(len(known), num_tokens)]


class TokenPlaces:
    """Places 0, 1, ... for one request each.

    A request goes where the longest run of tokens at the start of its prompt is in the pool already; where that is
    nowhere, or if there are several such places, to the one that has been left alone for the longest time, and before
    that to one that nobody has been in, the first of these.
    """

    def __init__(self, num_places: int) -> None:
        self._tokens: list[list[Hashable]] = [[] for _ in range(num_places)]
        self._left_at = list(range(-num_places, 0))  # never used: before all others, by number
        self._place_of: dict[int, int] = {}  # row -> place
        self._num_left = 0

    def find(self, tokens: list[Hashable]) -> tuple[int, int]:
        """(place, tokens that need not be computed); the last token of a prompt always is."""

        def num_common(place: int) -> int:
            pairs = zip(self._tokens[place], tokens, strict=False)
            return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

        places = set(range(len(self._tokens))) - set(self._place_of.values())
        place = min(places, key=lambda place: (-num_common(place), self._left_at[place]))
        return place, min(num_common(place), len(tokens) - 1)

    def take(self, place: int, row: int, tokens: list[Hashable]) -> None:
        self._place_of[row] = place
        self._tokens[place] = tokens

    def leave(self, row: int) -> None:
        self._left_at[self._place_of.pop(row)] = self._num_left
        self._num_left += 1

    def num_cached_tokens(self) -> int:
        """Tokens in places that nobody is in and that another prompt could begin with."""
        held = set(self._place_of.values())
        return sum(
            token[0] != "unknown"
            for place, tokens in enumerate(self._tokens)
            if place not in held
            for token in tokens
        )
