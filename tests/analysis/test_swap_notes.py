"""Swapping that was asked for and did not happen, and the watermark that holds."""

import json
from pathlib import Path
from typing import Any

import pytest
from fabricated import summary

from kvtwin.analysis.cli import main
from kvtwin.analysis.swaps import swap_notes
from kvtwin.sim import RunConfig

SWAPPING = {"swapping": {"num_groups_out": 0}, "peak_used_share": 0.1234}
SAID = (
    "nothing was swapped by vllm-v0: nobody was preempted (at most 12.3 % of the pool was in use)"
)


def config(**settings: Any) -> RunConfig:
    return RunConfig(model="opt-13b", gpu="a100-40gb", **settings)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    out, err = capsys.readouterr()
    assert (stop.value.code or 0, err) == (0, "")
    return out


@pytest.mark.parametrize(
    ("settings", "preemptions", "told"),
    [
        ({"preemption_mode": "swap"}, 0, [SAID]),
        ({"swap_space": 8.0}, 0, [SAID]),
        ({"preemption_mode": "swap"}, 1, []),
        ({}, 0, []),
        ({"swap_space": 8.0, "preemption_mode": "recompute"}, 0, []),
    ],
)
def test_swapping_that_was_asked_for_and_not_needed_is_noted(
    settings: dict[str, Any], preemptions: int, told: list[str]
) -> None:
    """Of a policy that swaps; nothing is said of one that never does."""
    swaps = summary("paged", policy="vllm-v0", preemptions=preemptions, **SWAPPING)
    never = summary("paged", preemptions=0)
    assert swap_notes(config(**settings), [swaps, never]) == told


@pytest.mark.parametrize("verb", [["run", "--policy"], ["compare", "--policies"]])
def test_it_is_among_the_notes(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = [*verb, "vllm-v0", "--num-requests", "3", "--preemption-mode", "swap", "--force"]
    assert "\nNote: nothing was swapped by vllm-v0: nobody" in printed(capsys, *asked)
    notes = json.loads(printed(capsys, *asked, "--json"))["notes"]
    assert sum(note.startswith("nothing was swapped") for note in notes) == 1


@pytest.mark.parametrize(
    ("policy", "flags", "shown"),
    [
        ("vllm-v0", [], "watermark 0.01,"),
        ("paged", [], "watermark 0.0,"),
        ("paged", ["--watermark", "0.2"], "watermark 0.2,"),
        ("orca-max", [], None),
    ],
)
def test_a_run_shows_the_watermark_that_holds(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    flags: list[str],
    shown: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    machine = ["--model", "opt-125m", "--gpu", "l4", "--num-requests", "2"]
    out = printed(capsys, "run", "--policy", policy, *machine, *flags)
    options = next(line for line in out.splitlines() if line.startswith("Policy options: "))
    assert "watermark" not in options if shown is None else shown in options
