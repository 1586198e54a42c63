"""Every gap between tokens is counted: the histogram against the list of all gaps."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.sim.gaps import GapHistogram

# Rows of times whose gaps do not become shorter, each of some requests; gaps of all magnitudes.
GAPS = st.one_of(st.integers(0, 400), st.integers(0, 10**10), st.integers(2**20 - 3, 2**20 + 3))
ROWS = st.lists(
    st.tuples(
        st.integers(0, 10**12),
        st.lists(GAPS, min_size=1, max_size=12).map(sorted),
        st.integers(1, 9),
    ),
    min_size=1,
    max_size=20,
)
Row = tuple[int, list[int], int]


def filled(rows: list[Row]) -> GapHistogram:
    histogram = GapHistogram()
    for start_ns, gaps_ns, num in rows:
        histogram.add(list(accumulate(gaps_ns, initial=start_ns)), num)
    return histogram


@given(rows=ROWS)
def test_mean_is_exact_and_percentiles_within_a_bin(rows: list[Row]) -> None:
    histogram = filled(rows)
    gaps_ns = sorted(gap for _, gaps, num in rows for gap in gaps * num)
    assert histogram.mean_ms() == sum(gaps_ns) / len(gaps_ns) / 1e6
    for percent in (1, 50, 99, 100):
        exact_ns = gaps_ns[max(1, -(-len(gaps_ns) * percent // 100)) - 1]  # nearest rank
        found_ns = histogram.percentile_ms(percent) * 1e6
        # The middle of a bin that is at most 1/128 of its lower edge wide.
        assert found_ns == pytest.approx(exact_ns, rel=1 / 256 + 1e-9, abs=1e-6)
        if exact_ns < 256:
            assert found_ns == pytest.approx(exact_ns, abs=1e-6), "short gaps have their own bins"


@given(rows=ROWS, data=st.data())
def test_order_and_grouping_do_not_matter(rows: list[Row], data: st.DataObject) -> None:
    """Steps that were carried out together, or one by one and in any order."""
    singles = [
        (before, [after - before], num)
        for start_ns, gaps, num in rows
        for before, after in pairwise(accumulate(gaps, initial=start_ns))
    ]
    single, together = filled(data.draw(st.permutations(singles))), filled(rows)
    assert single.mean_ms() == together.mean_ms()
    for percent in (10, 50, 99):
        assert single.percentile_ms(percent) == together.percentile_ms(percent)


def test_many_are_binned_in_bulk_without_losing_any() -> None:
    """Ten thousand rows of one gap: 1, 2, ..., 10000 ns."""
    histogram = filled([(7, [gap], 1) for gap in range(1, 10_001)])
    assert histogram.mean_ms() == 5000.5 / 1e6
    assert histogram.percentile_ms(50) == pytest.approx(5000 / 1e6, rel=0.004)
    assert histogram.percentile_ms(99) == pytest.approx(9900 / 1e6, rel=0.004)
    histogram.add([0, 20_000], 10_000)
    assert histogram.mean_ms() == pytest.approx((5000.5 + 20_000) / 2 / 1e6)


def test_nothing_has_no_mean() -> None:
    assert GapHistogram().mean_ms() is None
    assert GapHistogram().percentile_ms(50) is None
