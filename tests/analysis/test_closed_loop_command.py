"""`kvtwin run --closed-loop`: what it says, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from kvtwin.analysis.cli import main
from kvtwin.traces import Sessions, Trace, TraceChunk, write_trace

SETTING = ["--model", "opt-13b", "--gpu", "a100-40gb", "--max-model-len", "512"]


def chat(path: Path, think_ns: list[int]) -> str:
    """A chain of calls in a file."""
    num = len(think_ns)
    order, ones = np.arange(num), np.ones(num, dtype=np.int64)
    sessions = Sessions(0 * ones, order, order - 1, np.array(think_ns), -ones)
    chunk = TraceChunk(order * 10**9, 100 * ones, 20 * ones, -ones, sessions=sessions)
    write_trace(Trace("chat", "synthetic", (chunk,)), path, "kvtwin-parquet")
    return str(path)


def test_what_waits_and_what_is_not_known_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = chat(tmp_path / "chat.parquet", [-1, -1, 5, -1]), tmp_path / "out"
    with pytest.raises(SystemExit) as stop:
        main(["run", trace, *SETTING, "--closed-loop", "--out", str(out)])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert "4 requests, closed loop (3 come after others have ended)" in printed
    assert "Note: the think time of 2 of 3 calls that wait for others is not known" in printed
    assert json.loads((out / "run.json").read_text())["config"]["closed_loop"] is True


def test_nothing_is_said_where_all_think_times_are_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = chat(tmp_path / "chat.parquet", [-1, 0, 5])
    with pytest.raises(SystemExit):
        main(["run", trace, *SETTING, "--closed-loop", "--json", "--out", str(tmp_path / "out")])
    found = json.loads(capsys.readouterr().out)
    assert found["trace"]["closed_loop"] == {"num_waiting_calls": 2, "num_unknown_think_times": 0}
    assert found["trace"]["saturated"] is found["summary"]["saturated"] is False
    assert not any("think time" in note for note in found["notes"])


@pytest.mark.parametrize("closed", [True, False])
def test_a_trace_at_once(
    *, closed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file whose calls come a second apart, and wait for each other."""
    trace, out = chat(tmp_path / "chat.parquet", [-1, -1, 7 * 10**9]), tmp_path / "out"
    loop = ["--closed-loop"] if closed else []
    with pytest.raises(SystemExit) as stop:
        main(
            [
                "compare",
                trace,
                *SETTING,
                *loop,
                "--rate",
                "inf",
                "--policies",
                "paged",
                "--out",
                str(out),
            ]
        )
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    said = "all arrivals are at once (--rate inf); in the trace they span 2.000 s"
    assert f"Note: {said}\n" in printed
    assert said in (out / "report.html").read_text()
    assert json.loads((out / "paged" / "run.json").read_text())["trace"]["notes"] == [said]
    requests = pq.read_table(out / "paged" / "requests.parquet").to_pydict()
    first, second, third = requests["arrival_ns"]
    assert requests["trace_arrival_ns"] == [0, 0, 0]
    if closed:
        assert "closed loop (2 come after others have ended, the rest at once)" in printed
        assert "each comes at once when the last of these has ended" in printed
        ends = requests["finished_ns"]
        assert (first, second, third) == (0, ends[0], ends[1] + 7 * 10**9)
    else:
        assert "3 requests, all at once (saturated)" in printed
        assert "the 2 calls that wait for others of their session arrive at once" in printed
        assert (first, second, third) == (0, 0, 0)


@pytest.mark.parametrize("verb", ["run", "compare"])
def test_without_sessions_nothing_is_run_or_written(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([verb, "--num-requests", "3", "--closed-loop", "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "in sharegpt-like (synthetic) no call waits for another" in error
    assert not (tmp_path / "out").exists()
