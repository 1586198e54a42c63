"""The traces that speed is measured on, and the whole of it once, small."""

import re
from pathlib import Path

import bench
import numpy as np
import pytest
import workload
from measure import num_plans
from workload import find_given, lengthen, prepare, repeat, trace_path

from kvtwin.traces import UserError, open_trace, synthesize, write_trace


def test_repeat_goes_on_one_mean_gap_after_the_last_arrival() -> None:
    trace = synthesize("sharegpt-like", 11, seed=3, rate=8.0)
    once, thrice = trace.chunks[0], repeat(trace, 3).chunks[0]
    span = int(once.arrival_ns[-1])
    assert thrice.num_requests == 33
    assert (thrice.arrival_ns[:11] == once.arrival_ns).all()
    assert int(thrice.arrival_ns[11] - thrice.arrival_ns[10]) == round(span / 10)
    assert (np.diff(thrice.arrival_ns, n=1)[11:21] == np.diff(once.arrival_ns)).all()
    assert (thrice.num_output_tokens.reshape(3, 11) == once.num_output_tokens).all()
    assert (thrice.num_prompt_tokens.reshape(3, 11) == once.num_prompt_tokens).all()


def test_repeated_once_is_the_trace_itself() -> None:
    trace = synthesize("sharegpt-like", 11, seed=3, rate=8.0)
    assert (repeat(trace, 1).chunks[0].arrival_ns == trace.chunks[0].arrival_ns).all()


def test_longer_requests_arrive_as_much_further_apart() -> None:
    trace = synthesize("sharegpt-like", 11, seed=3, rate=8.0)
    once, longer = trace.chunks[0], lengthen(trace, 10).chunks[0]
    for name in ("arrival_ns", "num_prompt_tokens", "num_output_tokens"):
        assert (getattr(longer, name) == 10 * getattr(once, name)).all()


def test_generated_traces_have_one_shape_and_two_rates(tmp_path: Path) -> None:
    lines = prepare(None, tmp_path, quick=True)
    steady, saturated = (
        open_trace(trace_path(tmp_path, name)).chunks[0] for name in workload.RATES
    )
    assert steady.num_requests == 500
    assert (steady.num_output_tokens == saturated.num_output_tokens).all()
    assert steady.arrival_ns[-1] / saturated.arrival_ns[-1] == pytest.approx(4.0)
    assert open_trace(trace_path(tmp_path, "steady", 20)).num_requests == 10_000
    assert [line.split(" (")[0] for line in lines] == ["steady: generated", "saturated: generated"]


def test_given_traces_go_before_generated_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "bench"
    given.mkdir()
    monkeypatch.setenv("KVTWIN_SHARED", str(tmp_path))
    assert find_given(None, tmp_path) is None
    trace = synthesize("alpaca-like", 10_000, seed=0, rate=100.0)
    for name in workload.RATES:
        write_trace(trace, given / f"{name}.csv", "vidur")
    assert find_given(None, tmp_path) == given
    work = tmp_path / "work"
    work.mkdir()
    assert prepare(given, work, quick=True)[0].startswith("steady: given (steady.csv, vidur), 500")
    written = open_trace(trace_path(work, "steady")).chunks[0]
    assert (written.num_output_tokens == trace.chunks[0].num_output_tokens[:500]).all()


def test_missing_given_trace_is_named(tmp_path: Path) -> None:
    (tmp_path / "steady.csv").touch()
    with pytest.raises(UserError, match=r"--traces .*: saturated\.csv is missing; name a folder"):
        find_given(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("num_requests", "rate", "message"),
    [
        (9_999, 8.0, r"steady\.csv has 9999 requests; it must have at least 10,000"),
        (10_000, None, r"steady\.csv has all its requests arrive at once"),
    ],
)
def test_given_trace_that_does_not_serve_is_refused(
    tmp_path: Path, num_requests: int, rate: float | None, message: str
) -> None:
    trace = synthesize("alpaca-like", num_requests, seed=0, rate=rate)
    write_trace(trace, tmp_path / "steady.csv", "vidur")
    with pytest.raises(UserError, match=message):
        prepare(tmp_path, tmp_path / "work", quick=False)


def test_bench_says_in_one_line_what_the_user_can_mend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.md"
    assert bench.main(["--traces", str(tmp_path), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("bench: --traces ")
    assert not out.exists()


def test_whole_bench_on_few_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVTWIN_SHARED", str(tmp_path))  # nothing there: traces are generated
    monkeypatch.setattr(workload, "QUICK_DIVISOR", 500)
    monkeypatch.setattr(bench, "policy_names", lambda: ["paged", "static"])
    out = tmp_path / "reports" / "bench.md"
    assert bench.main(["--quick", "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert capsys.readouterr().out == text + "\n"
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.split("\n")
        if line.startswith("| ")
    ][2:]
    sizes = ["20", "20", "400", "400", "20", "20", "20", "20", "2,000", "2,000"]
    assert [row[2] for row in rows[:10]] == sizes
    # Per request and per plan: the two differ by the plans, of which both have as many in any run.
    counted = re.findall(r"(?:steady|saturated) ([\d,]+) and ([\d,]+)", text)
    assert len(counted) == 2
    for a_request, a_plan, (few, many) in zip(rows[4:6], rows[6:8], counted, strict=True):
        assert "plan" in a_plan[0]
        plans = int(many.replace(",", "")) / int(few.replace(",", ""))
        assert float(a_plan[5]) * plans == pytest.approx(float(a_request[5]), abs=0.02)
    finished = [row[-1] for row in rows if row[2]]
    assert len(finished) == 13
    assert set(finished) == {"yes"}
    assert rows[11][0] == "runs with unfinished requests"
    assert rows[11][5] == "0"
    assert rows[12][0] == "engine, static"
    assert [row[:2] for row in rows[13:]] == [
        ["scheduler of vllm-v1", "chats"],
        ["scheduler of vllm-v1", "pressure"],
    ]


def test_a_request_on_its_own_is_planned_once(tmp_path: Path) -> None:
    arrivals = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
    for num_requests in (1, 3):
        trace = tmp_path / f"{num_requests}.csv"
        lines = [f"{100 * i},10,1\n" for i in range(num_requests)]
        trace.write_text(arrivals + "".join(lines), encoding="utf-8")
        assert num_plans(trace, "paged", 1) == num_requests
