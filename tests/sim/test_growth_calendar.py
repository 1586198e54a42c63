"""Who grows when, against a list of every single growth."""

from hypothesis import given
from hypothesis import strategies as st

from kvtwin.sim import Sequence
from kvtwin.sim.calendar import GrowthCalendar

# (prompt, output, tokens of room beyond the prompt): many first grow later than in one round of phases.
SEQUENCES = st.lists(
    st.tuples(st.integers(1, 9), st.integers(2, 40), st.integers(0, 14)), min_size=1, max_size=8
)


def growth_steps(seq: Sequence, step: int, growth_tokens: int) -> list[int]:
    """A token is committed in each step from `step` on; whenever the room is full, more is granted first."""
    steps, room = [], seq.room
    for committed in range(seq.known, seq.end):
        if committed == room:
            steps.append(step + committed - seq.known)
            room += growth_tokens
    return steps


def last_tail(seq: Sequence, growth_tokens: int) -> int:
    """Slots behind E that its last growth grants."""
    room = seq.room
    while room < seq.end:
        room += growth_tokens
    return room - seq.end


@given(
    drawn=SEQUENCES,
    growth_tokens=st.integers(1, 6),
    step=st.integers(0, 50),
    num_steps=st.integers(1, 20),
    num_units=st.integers(0, 12),
    data=st.data(),
)
def test_growths_ahead_are_all_single_growths(
    drawn: list[tuple[int, int, int]],
    growth_tokens: int,
    step: int,
    num_steps: int,
    num_units: int,
    data: st.DataObject,
) -> None:
    calendar = GrowthCalendar(growth_tokens, growth_tokens)
    seqs = []
    for serial, (prompt, output, more) in enumerate(drawn):
        seq = Sequence(serial, prompt, output, output)
        seq.serial, seq.room = serial, prompt + more
        seqs.append(seq)
    for seq in data.draw(st.permutations(seqs)):
        calendar.add(seq, step)
    for seq in data.draw(st.lists(st.sampled_from(seqs), unique=True)):
        calendar.remove(seq, step)
        seqs.remove(seq)
    num_steps = min([num_steps, *(seq.end - seq.known for seq in seqs)])  # nobody finishes before
    every = sorted(
        (due, seq.serial) for seq in seqs for due in growth_steps(seq, step, growth_tokens)
    )
    expected = [(due, serial) for due, serial in every if due < step + num_steps]

    assert calendar.next_step(step) == min((due for due, _ in every), default=1 << 62)
    within = calendar.steps_within(step, num_steps, num_units)
    assert sum(due < step + within for due, _ in expected) <= num_units, "more growths than units"
    if growth_tokens >= num_steps and within < num_steps:
        assert sum(due <= step + within for due, _ in expected) > num_units, "not the most steps"

    times_ns = [1000 + 7 * at for at in range(num_steps + 1)]
    growers, moment, num_tail, tail_moment = calendar.ahead(step, times_ns, 0)
    assert [seq.serial for seq in growers] == [serial for _, serial in expected]
    assert moment == sum(times_ns[due - step] for due, _ in expected)
    tails = []
    for seq in seqs:
        steps = growth_steps(seq, step, growth_tokens)
        if steps and steps[-1] < step + num_steps:
            tails.append((steps[-1], last_tail(seq, growth_tokens)))
    assert num_tail == sum(tail for _, tail in tails)
    assert tail_moment == sum(tail * times_ns[due - step] for due, tail in tails)
    due_seqs = calendar.due(step + num_steps)
    assert {serial for due, serial in every if due == step + num_steps} <= {
        seq.serial for seq in due_seqs
    }
