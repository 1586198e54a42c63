"""`kvtwin explain hits` on the command line."""

import json
from pathlib import Path

import pytest
from random_cases import trace_of

from kvtwin.analysis.cli import main
from kvtwin.traces import write_trace


@pytest.fixture
def trace_path(tmp_path: Path) -> Path:
    """Three prompts of 300 tokens that share their first 250."""
    requests = [(row, 300, 1) for row in range(3)]
    contents = [((0, 0, 250), (row + 1, 0, 50)) for row in range(3)]
    path = tmp_path / "alike.parquet"
    write_trace(trace_of(requests, contents), path, "kvtwin-parquet")
    return path


def explain(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exited:
        main(["explain", "hits", *arguments])
    captured = capsys.readouterr()
    return int(exited.value.code or 0), captured.out, captured.err


def test_every_step_from_prompt_tokens_to_hits(
    trace_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed, _ = explain(capsys, str(trace_path), "--num-gpu-blocks-override", "10")
    assert code == 0
    numbers = [line[46:62].strip() for line in printed.splitlines()[:7]]
    # 10 blocks: the one needed last goes first, so that 10 of the 15 shared ones are kept.
    assert numbers == ["900", "500", "-20", "0", "-160", "0", "320"]
    # Two prompts find 15 shared blocks; the last of them is found again if all 19 of a request have room.
    assert [line.split()[:3] for line in printed.splitlines()[8:-2]] == [
        ["1", "blocks", "3.56"],
        ["2", "blocks", "7.11"],
        ["5", "blocks", "17.78"],
        ["10", "blocks", "35.56"],
        ["15", "blocks", "53.33"],
    ]
    assert printed.splitlines()[-1] == (
        "A cache of 10 blocks hits 35.56 % of the prompt tokens; the main cause of misses is that nobody sent them "
        "before (44.44 %), the next that they do not fit into the cache (17.78 %); 14 blocks get 90 % of the hits of "
        "a cache without end."
    )


def test_json_and_the_reason(trace_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _ = explain(capsys, str(trace_path), "--block-size", "784", "--json")
    facts = json.loads(printed)
    assert code == 0
    assert facts["reason"] == "longest shared prefix 250, block 784"
    assert (facts["num_infinite_hit_tokens"], facts["lost_to_blocks"]) == (500, 500)
    assert (facts["num_blocks"], facts["num_hit_tokens"]) == (None, 0)


@pytest.mark.parametrize("flag", ["--block-size", "--num-gpu-blocks-override"])
def test_a_size_out_of_range(
    flag: str, trace_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, message = explain(capsys, str(trace_path), flag, "0")
    assert (code, message) == (2, f"kvtwin: {flag} is 0; it must be at least 1\n")
    code, _, message = explain(capsys, str(trace_path), flag, str(10**21))
    assert (code, message) == (2, f"kvtwin: {flag} is too large; it must be at most 10^15\n")
