"""How far a plan with the last chunks of prompts may go on, against every single growth."""

from hypothesis import given
from hypothesis import strategies as st

from kvtwin.sim import Sequence
from kvtwin.sim.calendar import FinishCalendar, GrowthCalendar
from kvtwin.sim.horizon import up_to_next_finish

# (prompt, output, tokens of room beyond the prompt)
LENGTHS = st.tuples(st.integers(1, 9), st.integers(1, 30), st.integers(0, 9))


def sequence(serial: int, lengths: tuple[int, int, int]) -> Sequence:
    prompt, output, more = lengths
    seq = Sequence(serial, prompt, output, output)
    seq.serial, seq.room = serial, prompt + more
    return seq


def num_growths(seq: Sequence, num_steps: int, growth_tokens: int) -> int:
    """In so many steps from the one on in which the first token behind `seq.known` is committed."""
    room = seq.room
    for committed in range(seq.known, seq.known + num_steps):
        if committed == room:
            room += growth_tokens
    return (room - seq.room) // growth_tokens


@given(
    decoding=st.lists(LENGTHS, max_size=6),
    joining=st.lists(LENGTHS, min_size=1, max_size=3),
    growth_tokens=st.integers(1, 8),
    step=st.integers(0, 40),
    num_units=st.integers(0, 9),
)
def test_a_segment_behind_chunks_has_all_the_steps_that_memory_allows(
    decoding: list[tuple[int, int, int]],
    joining: list[tuple[int, int, int]],
    growth_tokens: int,
    step: int,
    num_units: int,
) -> None:
    finishes, growths = FinishCalendar(), GrowthCalendar(growth_tokens, growth_tokens)
    seqs = [sequence(serial, lengths) for serial, lengths in enumerate(decoding) if lengths[1] > 1]
    for seq in seqs:
        finishes.add(seq, step + seq.end - seq.known - 1)
        growths.add(seq, step)
    joined = [sequence(len(decoding) + at, lengths) for at, lengths in enumerate(joining)]
    context = sum(seq.known for seq in seqs)

    segments = up_to_next_finish(
        finishes, growths, [(seq, seq.known) for seq in joined], step, len(seqs), context, num_units
    )

    everybody = seqs + joined
    up_to_finish = min(seq.end - seq.known for seq in everybody)
    in_sight = min(up_to_finish, growth_tokens)

    def num_within(num_steps: int) -> int:
        return sum(num_growths(seq, num_steps, growth_tokens) for seq in everybody)

    num_steps = segments[0][0] if segments else 0
    assert num_steps <= up_to_finish
    assert num_within(num_steps) <= num_units, "more growths than units"
    if segments:
        num_seqs, slots = segments[0][1:]
        assert num_seqs == len(everybody)
        assert slots == context + sum(seq.known for seq in joined) + len(everybody)
    # Where nobody who joins grows early, not one step is left out.
    if not any(num_growths(seq, in_sight, growth_tokens) for seq in joined):
        most = max(num for num in range(in_sight + 1) if num_within(num) <= num_units)
        assert num_steps == most
