"""`kvtwin trace`: what people and scripts see."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvtwin.analysis.commands.trace import app
from kvtwin.traces import FORMATS, WORKLOADS, UserError, open_trace

OWN = "arrival_ns,num_prompt_tokens,num_output_tokens,max_tokens\n"


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_info_for_people(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(OWN + "0,10,1,\n\n500000000,20,3,7\n2000000000,30,5,\n")
    lines = run("info", path).splitlines()
    assert lines == [
        "trace              t (kvtwin-csv)",
        "requests           3",
        "skipped rows       1 x blank line",
        "span               2.000 s, 3 different arrival times",
        "rate               1 requests/s",
        "inter-arrival CV   0.50 (1 is a Poisson process), burstiness 4",
        "arrivals in 1 s    variance 0.67 times the mean",
        "idle gaps          0 of at least 10 s, 0.0 s in all; longest gap 1.500 s",
        "max_tokens         given for 1 requests",
        "prompt tokens      mean 20.0  p50 20  p90 28  p99 30  max 30",
        "output tokens      mean 3.0  p50 3  p90 5  p99 5  max 5",
        "3 requests, 1 requests/s over 2 s, 20 prompt and 3 output tokens each on average.",
    ]


def test_info_of_a_saturated_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(OWN + "7,10,1,\n7,20,3,\n")
    output = run("info", path)
    assert "saturated, all requests arrive at one instant" in output
    assert output.splitlines()[-1].startswith("2 requests, saturated, ")
    facts = json.loads(run("info", path, "--json"))
    assert (facts["saturated"], facts["rate"], facts["interarrival_cv"]) == (True, None, None)


def test_info_for_scripts(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(OWN[:-1] + ",note\n0,10,1,,a\n\n2000000000,30,5,9,b\n")
    facts = json.loads(run("info", path, "--json", "--format", "kvtwin-csv"))
    assert facts.pop("verdict").startswith("2 requests, 0.5 requests/s")
    assert facts == {
        "schema_version": 1,
        "name": "t",
        "format": "kvtwin-csv",
        "num_requests": 2,
        "skipped": {"blank line": 1},
        "unknown_keys": {"note": 2},
        "notes": [],
        "saturated": False,
        "span_s": 2.0,
        "rate": 0.5,
        "interarrival_cv": 0.0,
        "burstiness": None,
        "dispersion_1s": pytest.approx((2 / 3 - (2 / 3) ** 2) / (2 / 3)),
        "longest_gap_s": 2.0,
        "num_idle_gaps": 0,
        "idle_s": 0.0,
        "num_distinct_arrivals": 2,
        "prompt": {"mean": 20.0, "p50": 20.0, "p90": 28.0, "p99": 29.8, "max": 30},
        "output": {"mean": 3.0, "p50": 3.0, "p90": 4.6, "p99": 4.96, "max": 5},
        "num_with_max_tokens": 1,
        "num_priorities": None,
        "mean_samples": None,
        "sessions": None,
        "content_block_tokens": None,
        "hits": [],
    }


def test_synth_says_what_is_fitted_and_clipped(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    arguments = ("synth", "--workload", "sharegpt-like", "--num-requests", 300, "--seed", 4)
    output = run(*arguments, "--rate", 2, "--burstiness", 0.5, "--out", path)
    assert "asked of outputs: mean 337.99 tokens, CV 0.88 (fitted)" in output
    assert "clipped requests" in output
    assert output.splitlines()[-1] == (
        f"wrote 300 requests of sharegpt-like, seed 4, to {path} (kvtwin-csv)"
    )
    assert not open_trace(path).saturated
    with pytest.raises(UserError, match="exists already"):
        run(*arguments, "--out", path)
    assert "(kvtwin-csv)" in run(*arguments, "--out", path, "--force")
    assert open_trace(path).saturated
    run(*arguments, "--out", tmp_path / "s.parquet")
    assert open_trace(tmp_path / "s.parquet").format == "kvtwin-parquet"


def test_convert_counts_what_it_leaves_out(tmp_path: Path) -> None:
    source, target = tmp_path / "t.csv", tmp_path / "v.csv"
    source.write_text(OWN + "0,10,1,5\n\n1000000000,20,3,\n2000000000,30,5,\n")
    lines = run(
        *("convert", source, "--to", "vidur", "--out", target),
        *("--num-requests", 2, "--rate-scale", 4),
    ).splitlines()
    assert lines == [
        f"  skipped while reading {source}: 1 x blank line",
        "  not written: max_tokens, which vidur cannot carry",
        f"wrote 2 requests from {source} (kvtwin-csv) to {target} (vidur)",
    ]
    assert open_trace(target).chunks[0].arrival_ns.tolist() == [0, 250_000_000]


def test_convert_names_what_blocks_blur(tmp_path: Path) -> None:
    fine, coarse = tmp_path / "fine.jsonl", tmp_path / "coarse.jsonl"
    row = {"timestamp": 0, "input_length": 600, "output_length": 5}
    fine.write_text(json.dumps(row | {"hash_ids": list(range(38))}) + "\n")
    coarse.write_text(json.dumps(row | {"hash_ids": [0, 1]}) + "\n")
    lost = "content inside blocks of 512 tokens, which mooncake cannot carry"
    for source, block, is_named in ((fine, 16, True), (coarse, 512, False)):
        out = tmp_path / f"{source.stem}.out"
        flags = ("--trace-block-size", block, "--to", "mooncake", "--out", out)
        assert (lost in run("convert", source, *flags)) == is_named
    out = tmp_path / "v.csv"
    printed = run("convert", coarse, "--to", "vidur", "--out", out).splitlines()
    assert printed[0] == "  not written: content, which vidur cannot carry"
    parquet = tmp_path / "p.parquet"
    printed = run(
        "convert", fine, "--trace-block-size", 16, "--to", "kvtwin-parquet", "--out", parquet
    )
    assert "not written" not in printed


def test_names_of_keys_are_printed_so_that_a_terminal_is_safe(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    row = {"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [0]}
    names = ["\ud800", "a\n\x1b[31m", "k" * 50, *map(str, range(20))]
    path.write_text(json.dumps(row | dict.fromkeys(names, 1)) + "\n")
    (line,) = [line for line in run("info", path).splitlines() if line.startswith("keys not read")]
    assert line.isprintable()
    assert line.count(" x ") == 12
    assert line.endswith(", and 11 more")
    assert len(json.loads(run("info", path, "--json"))["unknown_keys"]) == 23


def test_errors_are_left_to_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        run("info", tmp_path / "none.csv")


def test_help_names_every_choice_and_loads_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from kvtwin.analysis.commands.trace import app\n"
        "for verb in ('info', 'synth', 'convert'):\n"
        "    print(CliRunner().invoke(app, [verb, '--help']).output)\n"
        "print(*(m for m in ('numpy', 'pyarrow', 'pandas') if m in sys.modules), 'end')\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert output.splitlines()[-1].split() == ["end"]
    for name in (*FORMATS, *WORKLOADS):
        assert name in output, name
