"""Figures, goals and the text of the table."""

import pytest
from calibration import calibrated
from measure import SETTING, Sample, setting
from table import RATE, SECONDS, Goal, Row, rate_row, ratio_row, render, unfinished_row

from kvtwin.sim import RunConfig


def sample(seconds: float, loop_s: float = 0.1, num_requests: int = 100, **counts: int) -> Sample:
    values = {"num_finished": num_requests, "num_rejected": 0, "preemptions": 0} | counts
    return Sample(seconds, loop_s, num_requests, mean_running=1.0, **values)


@pytest.mark.parametrize(
    ("goal", "just_met", "just_missed"),
    [
        (Goal("at_least", 20_000), 20_000, 19_999.9),
        (Goal("at_most", 1.15), 1.15, 1.1501),
        (Goal("below", 0.4), 0.3999, 0.4),
    ],
)
def test_goal_holds_at_its_limit_as_its_sign_says(
    goal: Goal, just_met: float, just_missed: float
) -> None:
    assert goal.met(just_met)
    assert not goal.met(just_missed)


def test_rate_is_requests_over_seconds_and_over_loop_units() -> None:
    row = rate_row("engine", "steady", [sample(0.5, 0.1), sample(0.25, 0.2), sample(1.0, 0.1)])
    assert row.values == (200.0, 400.0, 100.0)
    assert row.per_loop == (20.0, 80.0, 10.0)
    assert row.median == 200.0
    assert row.unit.best(row.values) == 400.0


def test_ratio_is_of_seconds_a_request_to_the_median_of_the_base() -> None:
    base = [sample(1.0), sample(2.0), sample(9.0)]  # 20 ms a request in the median
    row = ratio_row("long", "steady", [sample(60.0, num_requests=1000)], base, Goal("at_most", 1.5))
    assert row.values == pytest.approx((3.0,))
    assert row.cells()[9] == "no"


def test_ratio_per_loop_takes_out_a_machine_that_slowed_down() -> None:
    row = ratio_row("long", "", [sample(2.0, 0.2)], [sample(1.0, 0.1)], Goal("at_most", 1.5))
    assert row.values == (2.0,)
    assert row.per_loop == (1.0,)


def test_ratio_of_plans_is_of_seconds_a_plan() -> None:
    row = ratio_row("a plan", "", [sample(6.0)], [sample(1.0), sample(2.0)], nums=(300, 150))
    assert row.values == pytest.approx((2.0,))  # 20 ms to 10 ms
    assert row.per_loop == pytest.approx((2.0,))
    assert row.cells()[8:10] == ("", "")


def test_goal_is_judged_by_the_median_not_the_best() -> None:
    row = Row("x", "", RATE, (10.0, 11.0, 30_000.0), goal=Goal("at_least", 20_000))
    assert row.cells()[5:7] == ("11", "30,000")
    assert row.cells()[8:10] == (">= 20,000", "no")


def test_best_time_is_the_shortest() -> None:
    assert Row("x", "", SECONDS, (0.3, 0.1, 0.2)).cells()[5:7] == ("0.200", "0.100")


@pytest.mark.parametrize(
    "counts",
    [
        {"num_finished": 99, "num_rejected": 1},
        {"num_finished": 99, "num_rejected": 0},
        {"num_finished": 100, "num_rejected": 1},
    ],
)
def test_rejected_and_lost_requests_show_in_their_row_and_in_the_sum(
    counts: dict[str, int],
) -> None:
    lacking = sample(1.0, **counts)
    assert rate_row("engine", "steady", [lacking]).cells()[-1] == "no"
    total = unfinished_row([sample(1.0), lacking, lacking])
    assert total.values == (2,)
    assert total.cells()[9] == "no"


def test_a_request_that_fails_in_a_later_run_shows_too() -> None:
    row = rate_row("engine", "steady", [sample(1.0), sample(1.0, num_finished=99)])
    assert row.cells()[-1] == "no"


def test_table_is_markdown_with_aligned_columns() -> None:
    lines = render([rate_row("engine", "steady", [sample(0.5)]), Row("h", "", SECONDS, (0.2,))])
    header, rule, *body = lines.split("\n")
    assert len(body) == 2
    assert {len(line) for line in body} == {len(header)} == {len(rule)}
    assert {line.count("|") for line in (header, rule, *body)} == {14}


def test_loop_is_timed_around_the_work() -> None:
    done, loop_s = calibrated(lambda: "done")
    assert done == "done"
    assert loop_s > 0


def test_setting_of_longer_requests_keeps_the_blocks_and_is_one_that_kvtwin_takes() -> None:
    plain, long = RunConfig(**setting(1, "paged")), RunConfig(**setting(10, "paged"))
    assert plain.model == SETTING["model"]
    assert long.num_gpu_blocks_override == plain.num_gpu_blocks_override == 7000
    assert long.max_num_seqs == plain.max_num_seqs == 256
    assert (long.block_size, long.max_model_len) == (160, 40_960)
    assert long.max_num_batched_tokens == 10 * plain.max_num_batched_tokens
