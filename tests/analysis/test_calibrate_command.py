"""`kvtwin calibrate`: a file that --cost takes, from steps measured here and from a server's clients."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from test_gpu_command import kvtwin

from kvtwin.analysis.cli import main
from kvtwin.sim import CostModel

ROOT = Path(__file__).parents[2]
SMALL = (
    *("--layers", "1", "--heads", "2", "--head-dim", "16", "--max-num-seqs", "8"),
    *("--max-context", "40", "--max-slots", "400", "--max-num-batched-tokens", "64"),
)


def bench(path: Path, num_requests: int = 12) -> Path:
    """Requests one after the other, whose tokens come every 10 ms, plus 1 us for a slot of context."""
    tokens_s = [0.01 + 1e-6 * (100 + number) for number in range(1, 10)]
    path.write_text(
        json.dumps(
            {
                "input_lens": [100] * num_requests,
                "output_lens": [10] * num_requests,
                "ttfts": [0.05] * num_requests,
                "itls": [tokens_s] * num_requests,
                "start_times": [7.0 + number for number in range(num_requests)],
            }
        )
    )
    return path


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", *map(str, arguments)])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps measured here, and a run with them, as docs/validation.md tells people to type it."""
    page = (ROOT / "docs" / "validation.md").read_text()
    section = page[page.index("## Calibration") :]
    block = section.split("```sh\n")[1].split("```")[0]
    calibrate, run = (shlex.split(line)[1:] for line in block.splitlines())
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    monkeypatch.chdir(tmp_path)
    done = kvtwin(*calibrate, before="import sys; sys.argv[1:] = ['calibrate', '--x']")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith("(torch, float16)")
    assert "cross-validated" in done.stdout
    assert lines[-1] == "Wrote cpu.json; use it with --cost cpu.json."
    cost = CostModel.from_file(tmp_path / "cpu.json")
    assert cost.calibrated
    assert cost.fit is not None
    assert cost.fit.source == "kvtwin calibrate --x"
    assert (cost.fit.model, cost.fit.num_layers, cost.fit.backend) == ("OPT-125M", 2, "torch")
    assert cost.fit.noise is not None
    assert {"kvtwin", "torch", "python"} <= cost.fit.versions.keys()
    # What was measured is used without a stamp.
    done = kvtwin(*run)
    assert done.returncode == 0, done.stderr
    assert "UNCALIBRATED" not in done.stdout
    assert "step times fitted to" in done.stdout


def test_steps_that_clients_saw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "served.json"
    arguments = ["calibrate", "--model", "llama-3.1-8b", "--gpu", "l4", "--out", str(out)]
    main_ends([*arguments, "--from-bench", str(bench(tmp_path / "bench.json"))])
    printed = capsys.readouterr().out
    assert "108 steps on l4 (served, as served)" in printed
    assert "noise of repeats        not measured" in printed
    assert "steps left out: 12 x first step behind an idle engine" in printed
    assert "Note: never measured, so that it costs nothing: num_prefill_tokens" in printed
    cost = CostModel.from_file(out)
    # 10 ms, and 1 us for a slot: a batch of one has either of both as its constant.
    assert cost.step_ns((0, 0, 0, 1, 105, 0)) == pytest.approx(10_105_000, rel=1e-6)
    assert "not told apart from other totals by the measured steps: num_decode_tokens" in printed


def main_ends(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


def test_json_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = bench(tmp_path / "bench.json"), tmp_path / "served.json"
    main_ends(
        ["calibrate", "--model", "opt-13b", "--from-bench", str(path), "--out", str(out), "--json"]
    )
    printed = json.loads(capsys.readouterr().out)
    assert printed["cost"] == json.loads(out.read_text())
    assert printed["left_out"][0].startswith("steps left out: 12 x")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"itls": None}, "has no itls, which say when tokens came; measure with --save-detailed"),
        ({"start_times": None}, "has no start_times, which say when tokens came"),
        ({"ttfts": [0.1]}, "ttfts has 1 entries; input_lens has 3"),
        ({"itls": [[0.1], [], [-1]]}, "itls[2][0]"),
        (
            {},
            "what 27 steps did can be told from outside, at least 50 are needed; left out: 3 x first",
        ),
    ],
)
def test_a_bad_bench_is_refused(
    change: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bench(tmp_path / "bench.json", 3)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    out = tmp_path / "served.json"
    line = refused(capsys, "--model", "opt-13b", "--from-bench", path, "--out", out)
    assert str(path) in line
    assert said in line
    assert not out.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--from-bench", "b.json", "--layers", "2"), "executes nothing; leave out the flags"),
        (("--gpu", "l4"), "--gpu l4 is for --from-bench"),
        (("--layers", "0"), "--layers is 0; it must be at least 1"),
        (("--device", "tpu"), "device tpu: choose cuda or cpu"),
        (("--device", "cpu", "--kv-cache-dtype", "fp8"), "--kv-cache-dtype is fp8"),
        (("--device", "cpu", "--heads", "3", "--kv-heads", "2"), "--heads must be a multiple"),
        (("--device", "cpu", "--seconds", "nan"), "--seconds is nan; it must be above 0"),
        (("--device", "cpu", "--seconds", "0"), "--seconds is 0; it must be above 0"),
        (("--device", "cpu", "--seconds", "1e-9", *SMALL), "0 steps were measured, at least 20"),
    ],
)
def test_bad_flags_are_one_line(
    flags: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from kvtwin.gpu.twin import clock

    # It would go for the whole process of the tests.
    monkeypatch.setattr(clock, "keep_freed_memory", lambda: None)
    out = tmp_path / "cpu.json"
    assert said in refused(capsys, "--model", "opt-125m", "--out", out, *flags)
    assert not out.exists()


def test_a_file_is_not_replaced_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = bench(tmp_path / "bench.json"), tmp_path / "served.json"
    out.write_text("mine")
    arguments = ["--model", "opt-13b", "--from-bench", str(path), "--out", str(out)]
    assert "exists already" in refused(capsys, *arguments)
    assert out.read_text() == "mine"
    main_ends(["calibrate", *arguments, "--force"])
    assert CostModel.from_file(out).calibrated
