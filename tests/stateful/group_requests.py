"""What a machine of groups does, and the requests that come to it."""

from hypothesis import strategies as st

from kvtwin.sim.prompts import Pieces

KINDS = (
    *("admit",) * 4,
    *("decode",) * 4,
    *("swap out", "recompute", "resume", "arrive") * 2,
    *("fork", "abort"),
)
Request = tuple[int, list[int], bool, Pieces]


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Prompt, outputs, whether they are beams, and what is known of the tokens, at first what all have in common."""
    outputs = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    is_beam = draw(st.booleans())
    num_known = draw(st.integers(0, 18))
    num_common = draw(st.integers(0, num_known))
    pieces = ((7, 0, num_common), (draw(st.integers(0, 1)), num_common, num_known - num_common))
    known = tuple(piece for piece in pieces if piece[2])
    outputs = [outputs[0]] * len(outputs) if is_beam else outputs
    return draw(st.integers(1, 9)), outputs, is_beam, known
