"""The command line from end to end: exit codes, one line for a mistake, one object for --json."""

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from command import invoke

from kvtwin.analysis.cli import main
from kvtwin.sim import policy_names

POLICIES = "orca-max,paged"
SMALL = ["--num-requests", "30", "--seed", "1"]


def rejected(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line about a mistake."""
    code, out, err = invoke(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), (code, out, err)
    assert err.startswith("kvtwin: ")
    return err


@pytest.mark.parametrize(
    ("flag", "instead"),
    [
        ("--no-enable-prefix-caching", "the policy: vllm-v1 has it, vllm-v1-no-caching has not"),
        ("--no-scheduler-reserve-full-isl", "--admission step"),
    ],
)
def test_flags_of_vllm_that_are_something_else_here(
    flag: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rejected(capsys, "run", "--policy", "vllm-v1", flag).endswith(
        f"{flag} (in runs it is {instead})\n"
    )


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Output directory and JSON object of a small comparison in a process of its own."""
    out = tmp_path_factory.mktemp("compare") / "out"
    command = [sys.executable, "-c", "from kvtwin.analysis.cli import main; main()"]
    command += ["compare", *SMALL]
    command += ["--policies", POLICIES, "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return out, json.loads(done.stdout)


def test_json_is_one_object_with_shares_that_add_up(compared: tuple[Path, dict[str, Any]]) -> None:
    _, facts = compared
    assert facts["schema_version"] == 1
    assert [policy["policy"] for policy in facts["policies"]] == POLICIES.split(",")
    for policy in facts["policies"]:
        assert sum(policy["shares"].values()) == pytest.approx(1, abs=1e-9)
        assert all(0 <= share <= 1 for share in policy["shares"].values())
        assert policy["num_finished"] + policy["num_rejected"] == policy["num_requests"] == 30
        assert set(policy["ttft_ms"]) == {"mean", "p50", "p99"}
    assert facts["latency_calibrated"] is False
    assert facts["latency_note"].startswith("UNCALIBRATED")
    assert facts["pool"]["num_slots"] == 15_728
    assert facts["verdict"].startswith("paged keeps ")


def test_comparison_json_is_what_was_printed(compared: tuple[Path, dict[str, Any]]) -> None:
    out, facts = compared
    assert json.loads((out / "comparison.json").read_text()) == facts


def test_all_files_are_there(compared: tuple[Path, dict[str, Any]]) -> None:
    out, _ = compared
    assert {path.name for path in out.iterdir()} == {
        "comparison.json",
        "report.html",
        "parts.svg",
        "parts-over-time.svg",
        "memory-map.png",
        "cache-or-not.svg",
        "cache-or-not",
        *POLICIES.split(","),
    }
    for policy in POLICIES.split(","):
        assert (out / policy / "snapshots.parquet").is_file()


def test_a_comparison_can_be_repeated_with_force(
    compared: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    out, facts = compared
    arguments = ["compare", *SMALL, "--policies", POLICIES, "--out", str(out)]
    assert "is not empty; use --force" in rejected(capsys, *arguments)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    code, printed, _ = invoke(capsys, *arguments, "--force")
    assert code == 0
    assert printed.splitlines()[-1] == facts["verdict"]
    changed = [path.name for path, was in before.items() if path.read_bytes() != was]
    # Only meta.json may differ between two runs of the same thing.
    assert set(changed) <= {"meta.json"}


def test_run_needs_neither_pandas_nor_matplotlib(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from kvtwin.analysis.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as stop:\n    assert stop.code == 0, stop.code\n"
        "print(sorted({'pandas', 'matplotlib', 'torch'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", script, "run", *SMALL, "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_needs_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from kvtwin.analysis.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'numpy', 'pyarrow', 'pandas', 'matplotlib', 'simpy', 'torch', 'rich', 'jinja2'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "compare" in done.stdout


def test_run_writes_a_run_directory_and_ends_with_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    code, printed, _ = invoke(
        capsys, "run", *SMALL, "--policy", "paged", "--out", str(out), "--snapshots", "--decisions"
    )
    assert code == 0
    assert printed.splitlines()[-1].startswith("paged keeps ")
    assert {path.name for path in out.iterdir()} == {
        "run.json",
        "meta.json",
        "requests.parquet",
        "timeline.parquet",
        "snapshots.parquet",
        "decisions.parquet",
    }


def test_run_json_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _ = invoke(capsys, "run", *SMALL, "--out", str(tmp_path / "out"), "--json")
    facts = json.loads(printed)
    assert (code, facts["schema_version"], facts["summary"]["policy"]) == (0, 1, "paged")
    assert (facts["config"]["model"], facts["pool"]["num_slots"]) == ("OPT-13B", 15_728)
    assert (facts["trace"]["num_requests"], facts["latency_note"][:12]) == (30, "UNCALIBRATED")
    assert facts["notes"] == ["every step lasts 45 ms, whatever it does"]


def test_run_says_what_was_run_rejected_and_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = ["--rate", "2", "--max-model-len", "300", "--cost", "roofline"]
    code, printed, _ = invoke(capsys, "run", *SMALL, *limits, "--out", str(tmp_path / "out"))
    lines = printed.splitlines()
    assert code == 0
    assert lines[0].startswith("OPT-13B on A100-40GB-SXM: max_model_len 300, max_num_seqs 256")
    assert lines[4].strip("= ") == "kvtwin run: paged"
    (rejected,) = (line for line in lines if line.startswith("Rejected: "))
    assert re.fullmatch(
        r"Rejected: paged: \d+ of 30 requests; e\.g\. row \d+ in paged, "
        r"prompt is not below max_model_len: \d+, limit 300",
        rejected,
    )
    assert any(line.endswith("queues depend on these step times too") for line in lines)
    assert any(line.startswith("Note: ") for line in lines)


def test_the_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(capsys, "--version") == (0, f"kvtwin {version('kvtwin')}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["trace", "--help"]], ids=" ".join)
def test_summaries_in_the_help_are_whole(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, printed, _ = invoke(capsys, *arguments)
    listed = printed[printed.index("Commands:") :].splitlines()[1:]
    assert len(listed) >= 3
    assert all(line.endswith(".") and not line.endswith("...") for line in listed), listed


def test_policies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _ = invoke(capsys, "policies")
    assert code == 0
    assert [line.split()[0] for line in printed.splitlines()] == policy_names()
    _, as_json, _ = invoke(capsys, "policies", "--json")
    assert [entry["policy"] for entry in json.loads(as_json)["policies"]] == policy_names()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["compare", "--no-such-flag"],
            "--no-such-flag; see kvtwin compare --help",
        ),
        (["compare", "--num-requests", "many"], "--num-requests"),
        (["nonsense"], "nonsense"),
        (["compare", "--policies", "paged,no-such"], "policy 'no-such' is unknown"),
        (["compare", "missing.csv", "--policies", "no-such"], "policy 'no-such' is unknown"),
        (["run", "missing.csv", "--policy", "no-such"], "policy 'no-such' is unknown"),
        (["run", "--policy", "paged,static"], "run takes one policy; compare --policies"),
        (["compare", "--policies", "no.such:Policy"], "no.such:Policy"),
        (["compare", "--policies", ","], "names no policy"),
        (["compare", "--policies", "paged,paged"], "names paged twice"),
        (["compare", "--block-size", "0"], "--block-size is 0"),
        (["compare", "--model", "opt-13b"], "--gpu"),
        (["compare", "missing.csv", "--model", "opt-13b", "--gpu", "a100-40gb"], "missing.csv"),
        (["compare", "missing.csv"], "missing.csv does not exist"),
        (["run", "."], ". is a directory"),
        (["run", "missing.csv", "--model", "opt-13b"], "missing.csv does not exist"),
        (["run", "--policy", "no-such"], "no-such"),
        (["run", "--config", "missing.toml"], "missing.toml"),
        (["run", "--workload", "chat"], "chat"),
        (["run", "--num-gpu-blocks-override", "0"], "--num-gpu-blocks-override is 0"),
        (["run", "--cost", "missing.json"], "missing.json"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in rejected(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_in_a_worker_is_one_line_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = rejected(
        capsys, "compare", *SMALL, "--cost", "missing.json", "--out", str(tmp_path / "out")
    )
    assert "missing.json" in line
    assert list(tmp_path.iterdir()) == []


def test_kvtwin_alone_prints_its_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["kvtwin"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert (stop.value.code, "compare" in capsys.readouterr().out) == (0, True)
