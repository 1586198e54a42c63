"""The flags that say what to take from a trace, as every verb understands them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvtwin.analysis.commands.trace import app
from kvtwin.analysis.options import Inputs
from kvtwin.analysis.setting import load_trace
from kvtwin.analysis.trace_flags import TraceFlags, read_trace
from kvtwin.traces import UserError, open_trace

S = 10**9
ROWS = [(0, 5), (0, 6), (2, 7), (4, 8), (9, 9)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "t.csv"
    rows = "".join(f"{time},{prompt},3\n" for time, prompt in ROWS)
    file.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    return file


def taken(path: Path, num_requests: int | None = None, **flags: object) -> list[tuple[float, int]]:
    (chunk,) = read_trace(path, TraceFlags(**flags), num_requests, 0).chunks  # type: ignore[arg-type]
    seconds = (chunk.arrival_ns / S).tolist()
    return list(zip(seconds, chunk.num_prompt_tokens.tolist(), strict=True))


def test_each_flag(path: Path) -> None:
    assert taken(path) == ROWS
    assert taken(path, 2) == ROWS[:2]
    assert taken(path, 2, skip=2) == [(0, 7), (2, 8)]
    assert taken(path, window="2:9") == [(0, 7), (2, 8)]
    assert taken(path, window="2:inf", num_requests=2) == [(0, 7), (2, 8)]
    assert taken(path, rate_scale=2.0, skip=3) == [(0, 8), (2.5, 9)]
    assert taken(path, time_scale=2.0, skip=3) == [(0, 8), (10, 9)]
    # Spread before anything is cut off: the first two share the 2 s until the third.
    assert taken(path, 2, spread=True) == [(0, 5), (1, 6)]
    assert taken(path, sample=1.0) == ROWS
    assert taken(path, rate=float("inf")) == [(0, prompt) for _, prompt in ROWS]
    assert taken(path, 1, rate=float("inf"), window="2:9") == [(0, 7)]
    columns = "prompt=num_decode_tokens,output=num_prefill_tokens,arrival=arrived_at:ms"
    assert taken(path, 1, columns=columns) == [(0, 3)]


def test_spreading_needs_the_batch_after_what_is_taken(path: Path) -> None:
    """Reading must not stop behind the first two: when the next stamp comes says how to spread them."""
    assert taken(path, 1, spread=True, skip=1) == [(0, 6)]
    assert taken(path, 3, spread=True)[2] == (2, 7)


@pytest.mark.parametrize("window", ["5", "a:b", "3:2", ":"])
def test_windows_that_are_none(path: Path, window: str) -> None:
    with pytest.raises(UserError, match=r"window is .*(START:END|two times)"):
        taken(path, window=window)


def test_a_run_takes_the_same_flags(path: Path) -> None:
    trace = load_trace(Inputs(trace=path, skip=1, num_requests=2, time_scale=3.0), 0)
    assert trace.chunks[0].arrival_ns.tolist() == [0, 6 * S]
    with pytest.raises(UserError, match=r"--num-requests is 5, but trace .* has 4 requests"):
        load_trace(Inputs(trace=path, skip=1, num_requests=5), 0)
    for name, value in (("skip", 1), ("window", "0:1"), ("spread", True), ("columns", "a=b")):
        with pytest.raises(UserError, match=f"--{name} is given without a trace to read"):
            load_trace(Inputs(**{name: value}), 0)  # type: ignore[arg-type]
    generated = load_trace(Inputs(num_requests=5, rate=1.0, time_scale=2.0), 0)
    plain = load_trace(Inputs(num_requests=5, rate=1.0), 0)
    assert generated.chunks[0].arrival_ns[-1] == 2 * plain.chunks[0].arrival_ns[-1]


def test_info_and_convert_take_them_too(path: Path, tmp_path: Path) -> None:
    def run(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    facts = json.loads(run("info", path, "--window", "0:3", "--time-scale", 0.5, "--json"))
    assert (facts["num_requests"], facts["span_s"]) == (3, 1.0)
    at_once = run("info", path, "--rate", "inf")
    assert "span               0.000 s, 1 different arrival time\n" in at_once
    assert "arrivals are at once (--rate inf); in the trace they span 9.000 s\n" in at_once
    with pytest.raises(UserError, match=r"--rate 4 is for generated requests, but trace .*t\.csv"):
        run("info", path, "--rate", 4)
    out = tmp_path / "m.jsonl"
    printed = run("convert", path, "--to", "mooncake", "--out", out, "--skip", 3)
    assert printed.splitlines()[-1].startswith("wrote 2 requests from ")
    assert open_trace(out).chunks[0].num_prompt_tokens.tolist() == [8, 9]
    with pytest.raises(UserError, match="--block-size is 0"):
        run("info", path, "--block-size", 0)
    with pytest.raises(UserError, match="--trace-block-size is 0"):
        run("info", path, "--trace-block-size", 0)
    for flag in ("--block-size", "--trace-block-size"):
        with pytest.raises(UserError, match=f"{flag} is too large; it must be at most 10.15"):
            run("info", path, flag, 10**21)
    with pytest.raises(UserError, match="seed is -5; it must be at least 0"):
        run("info", path, "--sample", 0.5, "--seed", -5)


def test_synth_wants_one_kind_of_request(tmp_path: Path) -> None:
    def run(*arguments: object) -> str:
        base = ["synth", "--num-requests", "30", "--seed", "1", "--out", str(tmp_path / "g.csv")]
        return CliRunner().invoke(app, [*base, *map(str, arguments)], catch_exceptions=False).output

    mix = ("--prompt", "fixed:10", "--output", "fixed:5")
    for arguments, words in (
        ((), "give either --workload, or --prompt and --output"),
        (("--workload", "alpaca-like", *mix), "give either --workload"),
        (("--prompt", "fixed:3"), "--prompt and --output belong together"),
        (("--workload", "alpaca-like", "--turns", 3), "give either --workload"),
        ((*mix, "--calls", 3), "need --tool-result"),
        (
            (*mix, "--tool-result", "fixed:9", "--turns", 3),
            "--priorities and --samples do not go with",
        ),
        ((*mix, "--tool-result", "fixed:9"), "--tool-result needs --rate, of sessions"),
        (
            (*mix, "--tool-result", "fixed:9", "--rate", 1, "--system-prompts", "2,9"),
            "share one system prompt",
        ),
        ((*mix, "--burstiness", 2), "write --arrivals gamma:SHAPE"),
        ((*mix, "--system-prompts", "8"), "write N,TOKENS, like 8,1024"),
    ):
        with pytest.raises(UserError, match=words):
            run(*arguments)
    printed = run(*mix, "--turns", 3, "--system-prompts", "2,50", "--force").splitlines()
    assert printed[-1].startswith("wrote 30 requests of generated, seed 1, to ")
    assert "  not written: sessions, which kvtwin-csv cannot carry; write a .parquet" in printed
    agents = run(*mix, "--tool-result", "fixed:9", "--rate", 1, "--subagents", 0.5, "--force")
    assert "forks and joins    " in agents
    assert "  not written: content, which kvtwin-csv cannot carry; write a .parquet" in printed
