"""Durations of many steps at once, against the cost model asked step by step."""

from hypothesis import given
from hypothesis import strategies as st

from kvtwin.sim import CostModel, CostTerm
from kvtwin.sim.executor import CostExecutor
from kvtwin.sim.plan import Plan

# In 2**-20 ns. Small ones make steps of under a nanosecond and roundings that differ from step to step.
COEFFICIENTS = st.one_of(st.integers(0, 3), st.integers(0, 1 << 21), st.integers(0, 1 << 50))
TERMS = st.builds(
    lambda constant, coefficients: CostTerm("drawn", constant, tuple(coefficients)),
    COEFFICIENTS,
    st.lists(COEFFICIENTS, min_size=6, max_size=6),
)
SEGMENTS = st.lists(
    st.tuples(st.integers(1, 60), st.integers(1, 9), st.integers(0, 300)), max_size=4
)


@given(
    terms=st.lists(TERMS, min_size=1, max_size=3),
    start_ns=st.integers(0, 10**15),
    segments=SEGMENTS.filter(bool),
    deadline=st.one_of(st.integers(-5, 200), st.integers(0, 3000), st.just(1 << 62)),
)
def test_repeated_steps_last_as_long_as_single_ones(
    terms: list[CostTerm], start_ns: int, segments: list[tuple[int, int, int]], deadline: int
) -> None:
    """Segments: (steps, decoding sequences, context slots of the first step). The first is the plan's own."""
    assert_repeated(terms, start_ns, segments, start_ns + deadline)


@given(
    num_seqs=st.integers(1, 9),
    context=st.integers(0, 300),
    slope=st.integers(1, 1 << 24),
    crossing=st.integers(-1, 31),
    offset=st.integers(-3, 3),
    deadline_ns=st.one_of(st.integers(1, 9000), st.just(1 << 62)),
)
def test_one_term_overtakes_another_on_the_way(
    num_seqs: int, context: int, slope: int, crossing: int, offset: int, deadline_ns: int
) -> None:
    """A term that grows with the context meets one that does not, before, in or behind 30 steps."""
    at_crossing = slope * (context + num_seqs * crossing)
    flat = CostTerm("flat", max(0, at_crossing + offset), (0,) * 6)
    growing = CostTerm("growing", 0, (0, 0, 0, 0, slope, 0))
    assert_repeated([flat, growing], 0, [(30, num_seqs, context)], deadline_ns)


def assert_repeated(
    terms: list[CostTerm], start_ns: int, segments: list[tuple[int, int, int]], deadline_ns: int
) -> None:
    model = CostModel("drawn", calibrated=False, terms=tuple(terms))
    num_steps, num_seqs, context = segments[0]
    plan = Plan(start_ns, num_seqs, context)
    plan.max_steps, plan.deadline_ns, plan.more = num_steps, deadline_ns, iter(segments[1:])

    expected, now_ns = [], start_ns
    for num_steps, num_seqs, context in segments:
        for step in range(num_steps):
            if expected and now_ns >= deadline_ns:
                break
            now_ns += model.step_ns((0, 0, 0, num_seqs, context + num_seqs * step, 0))
            expected.append(now_ns)
    assert list(CostExecutor(model).execute(plan)) == expected


@given(
    terms=st.lists(TERMS, min_size=1, max_size=3),
    totals=st.lists(st.integers(0, 10_000), min_size=6, max_size=6),
)
def test_a_step_of_everything_lasts_what_the_model_says(
    terms: list[CostTerm], totals: list[int]
) -> None:
    model = CostModel("drawn", calibrated=False, terms=tuple(terms))
    plan = Plan(5, totals[3], totals[4])
    plan.num_prefill_tokens, plan.prefill_pairs, plan.prefill_context_slots = totals[:3]
    plan.moved_slots = totals[5]
    assert list(CostExecutor(model).execute(plan)) == [5 + model.step_ns(tuple(totals))]
