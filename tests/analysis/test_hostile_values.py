"""Values that nobody means: one line, exit code 2, and nothing left behind."""

import json
from pathlib import Path

import pytest

from kvtwin.analysis.cli import main
from kvtwin.sim import CostModel, RunConfig, load_cost
from kvtwin.traces import UserError, synthesize

BASE = ["run", "--num-requests", "5"]
HUGE = "9" * 25


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--max-tokens", HUGE], ["--max-tokens", "10^15"]),
        (["--growth-tokens", HUGE, "--policy", "contiguous"], ["--growth-tokens", "10^15"]),
        (["--num-gpu-blocks-override", HUGE], ["--num-gpu-blocks-override", "10^15"]),
        (
            ["--num-gpu-blocks-override", "1000000000000"],
            ["1,000,000,000,000 blocks", "50,000,000"],
        ),
        (["--kv-cache-memory-bytes", "999999999999999"], ["blocks of 16 tokens", "50,000,000"]),
        (["--cost", "constant:9100000000000000"], ["--cost", "999,999,999,999"]),
        (["--cost", f"constant:{'1' * 5000}"], ["--cost", "999,999,999,999"]),
        (["--watermark", "1"], ["--watermark", "below 1"]),
        (["--policy", "..:y"], ["..:y", "PYTHONPATH"]),
        (["--rate", "1e-300"], ["rate"]),
    ],
)
def test_one_line_and_nothing_written(
    flags: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as stop:
        main([*BASE, *flags, "--out", str(out)])
    printed = capsys.readouterr()
    assert stop.value.code == 2
    assert printed.err.startswith("kvtwin: ")
    assert printed.err.count("\n") == 1, printed.err
    assert all(word in printed.err for word in words), printed.err
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device", "requests.parquet")

    monkeypatch.setattr("kvtwin.sim.run_directory.pq.write_table", full)
    with pytest.raises(SystemExit) as stop:
        main([*BASE, "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert capsys.readouterr().err == "kvtwin: No space left on device (requests.parquet)\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["[" * 100_000, f"seed = {'1' * 5000}"])
def test_endless_toml(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"a = {text}" if text.startswith("[") else text)
    with pytest.raises(UserError, match=r"run\.toml"):
        RunConfig.from_toml(path, model="opt-13b", gpu="h100")


def test_endless_coefficients(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text("[" * 100_000)
    with pytest.raises(UserError, match="not a coefficients file"):
        CostModel.from_file(path)
    config = RunConfig(model="opt-13b", gpu="a100-40gb", cost="constant:5")
    content = load_cost(config).to_dict()
    content["terms"][0]["constant"] = 10**25
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"constant.*0 to 2"):
        CostModel.from_file(path)


def test_a_small_pool_of_small_tokens_is_compared(tmp_path: Path) -> None:
    """Without a cache less fits than with one; the figure of one request has to do with less, or to go."""
    out = tmp_path / "out"
    command = (
        "compare --policies paged --num-requests 5 --max-model-len 2048 --workload alpaca-like"
    )
    machine = "--model qwen2.5-7b --gpu l4 --num-gpu-blocks-override 200"
    with pytest.raises(SystemExit) as stop:
        main([*command.split(), *machine.split(), "--out", str(out)])
    assert stop.value.code == 0
    assert (out / "report.html").is_file()


def test_the_slowest_rate_warns_nobody() -> None:
    with pytest.raises(UserError, match="rate"):
        synthesize("alpaca-like", 3, 0, rate=1e-300)
