"""The head of a prompt is cut where it is asked to be, and leaves no empty piece behind."""

import pytest

from kvtwin.sim.prompts import Pieces, first_pieces, num_common_tokens

PIECES: Pieces = ((1, 0, 4), (2, 7, 3))


@pytest.mark.parametrize(
    ("num_tokens", "head"),
    [
        (1, ((1, 0, 1),)),
        (4, ((1, 0, 4),)),
        (5, ((1, 0, 4), (2, 7, 1))),
        (7, PIECES),
        (99, PIECES),
    ],
)
def test_first_pieces(num_tokens: int, head: Pieces) -> None:
    assert first_pieces(PIECES, num_tokens) == head
    assert num_common_tokens(PIECES, head) == min(num_tokens, 7)
