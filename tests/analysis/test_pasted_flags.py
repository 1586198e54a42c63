"""A whole line of `vllm serve`, or a whole file: one attempt tells all that is no setting here."""

from pathlib import Path

import pytest

from kvtwin.analysis.cli import main
from kvtwin.sim import vllm_flags

MACHINE = ["--model", "llama-3.1-8b", "--gpu", "a100-80gb"]
LINE = (
    "-tp 1 --max-model-len 32k --gpu-memory-utilization 0.9 --max-num-seqs 512 "
    "--enforce-eager --kv-cache-dtype fp8_e4m3 "
    "--enable-prefix-caching --served_model_name x --port 8000 --trust-remote-code -qfp8 --num-scheduler-steps=8"
)
PASTED = LINE.split()
ANSWERING = f"--served-model-name and --port ({vllm_flags._ANSWERING})"
LOADING = f"--trust-remote-code ({vllm_flags._LOADING})"
OF_POLICY = "(in runs it is the policy: vllm-v1 has it, vllm-v1-no-caching has not)"
ON, OFF = "--enable-prefix-caching", "--no-enable-prefix-caching"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr, without its end."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (2, "", 1)
    return str(err).removeprefix("kvtwin: ").rstrip("\n")


@pytest.mark.parametrize("verb", ["run", "compare", "validate"])
def test_a_pasted_line_is_answered_in_one(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert refused(capsys, verb, *MACHINE, *PASTED) == (
        f"No such options: {ON} {OF_POLICY}, {ANSWERING}, {LOADING}, --num-scheduler-steps; leave out "
        f"--served-model-name, --port and --trust-remote-code; see kvtwin {verb} --help"
    )


def test_a_line_of_which_all_is_needless(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*PASTED[:-1], "--seed", "1", "--speculative-config", "-1", "--", "--x"]
    assert refused(capsys, "size", *MACHINE, *flags) == (
        f"No such options: {ON} ({vllm_flags._OF_SIZES.why}), {ANSWERING}, {LOADING}, --seed (a flag of kvtwin "
        f"compare, run and validate, not of size), --speculative-config ({vllm_flags._MISSING}); leave them out"
    )


def test_what_is_left_when_it_is_followed_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["run", "--policy", "vllm-v1", "--num-requests", "2", *MACHINE, *PASTED[:11]])
    assert not stop.value.code


@pytest.mark.parametrize(
    ("arguments", "flag", "said"),
    [
        (["run", "--policy", "vllm-v1"], ON, "(the policy given has it); leave it out"),
        (["run", "--policy=vllm-v1"], OFF, OF_POLICY),
        (["run", "--policy", "paged"], ON, OF_POLICY),
        (["run", "--policy", "paged"], OFF, "(the policy given caches none); leave it out"),
        (["run", "--policy", "none-such"], ON, OF_POLICY),
        (["run"], ON, OF_POLICY),
        (["compare", "--policies", "vllm-v1,vllm-v1-no-caching"], ON, OF_POLICY),
        (
            ["compare", "--policies", "vllm-v1,vllm-v0-prefix-caching"],
            ON,
            "(the policy given has it); leave it out",
        ),
        (["size"], OFF, f"({vllm_flags._OF_SIZES.why}); leave it out"),
    ],
)
def test_prefix_caching_is_the_policys(
    capsys: pytest.CaptureFixture[str], arguments: list[str], flag: str, said: str
) -> None:
    assert refused(capsys, *arguments, flag) == f"No such option: {flag} {said}"


def test_a_value_is_no_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "run", "--port", "8000", "--seed", "-x", "--out", "--uds").startswith(
        f"No such option: --port ({vllm_flags._ANSWERING})"
    )


def test_flags_of_a_verb_are_not_held_against_the_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert refused(capsys, "--port", "run", "--seed", "1").startswith("No such option: --port (")


def test_all_keys_of_a_file_are_told_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'model = "opt-13b"\nport = 8000\ngpu = "l4"\nserved-model-name = "x"\nblock_sise = 8\n'
    )
    assert refused(capsys, "run", "--config", str(path)) == (
        f"{path}:2: unknown keys port and served-model-name ({vllm_flags._ANSWERING}), block_sise (did you mean "
        "block_size?); leave out port and served-model-name"
    )
