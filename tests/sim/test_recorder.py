"""Timeline rows: they cover the run, and add up to it, however often they were joined."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.sim.ledger import FIELDS
from kvtwin.sim.recorder import MAX_ROWS, Recorder, Sample

POOL = 10
SAMPLE = Sample(0, POOL, POOL, ())


def totals_at(now_ns: int, num_steps: int) -> tuple[int, ...]:
    """Of a pool with 3 live, 4 useful, 5 asked, 6 granted slots, and 1 of 4 free ones external."""
    values = {
        "live": 3,
        "useful": 4,
        "asked": 5,
        "granted": 6,
        "free": 4,
        "external": 1,
        "running": 2,
    }
    counts = {"duration_ns": now_ns, "num_steps": num_steps, "num_prefill_tokens": 7 * num_steps}
    return tuple(counts.get(name, values.get(name, 0) * now_ns) for name in FIELDS)


@given(
    durations_ns=st.lists(st.integers(1, 50), min_size=1, max_size=60), row_ns=st.integers(1, 40)
)
def test_rows_are_whole_steps_and_end_in_time(durations_ns: list[int], row_ns: int) -> None:
    recorder, now_ns, ends_ns = Recorder(POOL, row_ns, snapshots=False), 0, []
    for step, duration_ns in enumerate(durations_ns, start=1):
        now_ns += duration_ns
        if now_ns >= recorder.row_end_ns:
            recorder.close_row(totals_at(now_ns, step), SAMPLE)
            ends_ns.append(now_ns)
            assert recorder.row_end_ns == now_ns + row_ns
    recorder.finish(totals_at(now_ns, len(durations_ns)), SAMPLE)
    if not ends_ns or ends_ns[-1] < now_ns:
        ends_ns.append(now_ns)
    assert [row.end_ns for row in recorder.rows] == ends_ns
    assert recorder.whole == totals_at(now_ns, len(durations_ns))


@pytest.mark.parametrize("num_steps", [MAX_ROWS - 1, MAX_ROWS, 1000, 5000])
def test_rows_are_joined_in_pairs_and_nothing_is_lost(num_steps: int) -> None:
    recorder = Recorder(POOL, 10, snapshots=False)
    for step in range(1, num_steps + 1):
        if step * 10 >= recorder.row_end_ns:
            recorder.close_row(totals_at(step * 10, step), SAMPLE)
    recorder.finish(totals_at(num_steps * 10, num_steps), SAMPLE)
    rows = recorder.rows
    assert MAX_ROWS // 2 <= len(rows) < MAX_ROWS
    assert (rows[0].start_ns, rows[-1].end_ns) == (0, num_steps * 10)
    for before, after in pairwise(rows):
        assert before.end_ns == after.start_ns
    total = tuple(map(sum, zip(*(row.sums for row in rows), strict=True)))
    assert total == totals_at(num_steps * 10, num_steps)


def test_the_later_sample_of_a_pair_is_kept() -> None:
    recorder = Recorder(POOL, 1, snapshots=False)
    for step in range(1, MAX_ROWS + 1):
        recorder.close_row(totals_at(step, step), Sample(step, POOL, POOL, ()))
    assert [row.sample.num_waiting for row in recorder.rows] == list(range(2, MAX_ROWS + 1, 2))
    assert recorder.row_end_ns == MAX_ROWS + 2, "rows are twice as long from now on"


def test_the_window_is_the_last_one_told_or_the_whole_run() -> None:
    recorder = Recorder(POOL, 100, snapshots=False)
    recorder.end_loaded_window(totals_at(30, 3))
    recorder.end_loaded_window(totals_at(70, 7))  # a preempted one waited, and was admitted again
    recorder.finish(totals_at(90, 9), SAMPLE)
    assert recorder.loaded == totals_at(70, 7)
    saturated = Recorder(POOL, 100, snapshots=False)
    saturated.end_loaded_window(totals_at(0, 0))
    saturated.finish(totals_at(90, 9), SAMPLE)
    assert saturated.loaded == saturated.whole == totals_at(90, 9)


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        (
            "granted",
            1,
            "INV-1: granted 61 \\+ free 40 \\+ cached 0 slot-ns are 101, .* 10 slots x 10 ns = 100",
        ),
        ("live", 11, "INV-1: live 41, below E 40"),
        ("useful", 11, "INV-1: live 30, below E 51, asked 50"),
        ("asked", 11, "asked 61, granted 60 slot-ns are not in order"),
        ("live", -31, "INV-1: live -1"),
        ("external", 31, "INV-1: external 41 of 40 free"),
    ],
)
def test_rows_that_do_not_add_up_are_refused(field: str, change: int, message: str) -> None:
    totals = list(totals_at(10, 1))
    totals[FIELDS.index(field)] += change
    with pytest.raises(AssertionError, match=message):
        Recorder(POOL, 1, snapshots=False).close_row(tuple(totals), SAMPLE)
