"""The flags of an engine: spelled, read and refused alike by every verb that has them."""

from pathlib import Path
from typing import Any

import pytest
import typer
from command import facts, invoke

from kvtwin.analysis.cli import app
from kvtwin.analysis.engine_flags import _HUMAN_READABLE
from kvtwin.analysis.options import Inputs
from kvtwin.analysis.setting import _OF_VERBS
from kvtwin.sim import vllm_flags
from kvtwin.sim.setting_values import HUMAN_READABLE

VERBS = ("run", "compare", "size", "validate")
MACHINE = ["--model", "llama-3.1-8b", "--gpu", "a100-80gb"]
# Limits of a run, so that both take the same memory for activations.
STEP = ["--max-num-seqs", "256", "--max-num-batched-tokens", "8192", "--max-model-len", "4096"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`kvtwin run` of two requests with more flags: its facts."""
    monkeypatch.chdir(tmp_path)
    return lambda *flags: facts(capsys, "run", "--num-requests", "2", "--force", *MACHINE, *flags)


def options_of(verb: str) -> dict[str, Any]:
    command: Any = typer.main.get_command(app)
    return {option.name: option for option in command.commands[verb].params}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_the_same_spellings(verb: str) -> None:
    """But for what other engines call the fraction, which `size` alone counts as they do."""
    sized, found = options_of("size"), options_of(verb)
    shared = (vars(Inputs()).keys() & sized.keys()) - {"gpu_memory_utilization"}
    assert len(shared) == 12
    for name in shared:
        assert found[name].opts == sized[name].opts, name
        assert found[name].secondary_opts == sized[name].secondary_opts, name


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        (["-tp", "2"], "tensor_parallel_size", 2),
        (["--max-model-len", "8k"], "max_model_len", 8000),
        (["--max-model-len", "8K"], "max_model_len", 8192),
        (["--max-model-len", "25.6k"], "max_model_len", 25_600),
        (["--max-model-len", "0.1m"], "max_model_len", 100_000),
        (["--max_model_len=4_096"], "max_model_len", 4096),
        (["--max_num_batched_tokens", "8k"], "max_num_batched_tokens", 8000),
        (["--kv-cache-dtype", "fp8_e4m3"], "kv_cache_dtype", "fp8"),
        (["--kv-cache-dtype", "fp8_e5m2"], "kv_cache_dtype", "fp8"),
        (["--enforce-eager"], "enforce_eager", True),
        (["--enforce-eager", "--no-enforce-eager"], "enforce_eager", False),
    ],
)
def test_a_flag_means_the_same_to_a_run_and_to_a_sizing(
    capsys: pytest.CaptureFixture[str], run: Any, flags: list[str], name: str, value: Any
) -> None:
    assert run(*flags)["config"][name] == value
    assert facts(capsys, "size", *MACHINE, *flags)["setting"][name] == value


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["-tp", "2"],
        ["--enforce-eager"],
        ["--quantization", "fp8"],
        ["-q", "awq_marlin"],
        ["--kv-cache-dtype", "fp8_e5m2"],
        ["--kv-cache-memory-bytes", "10G"],
        ["--kv-cache-memory-bytes", "10g"],
    ],
    ids=" ".join,
)
def test_a_run_has_the_pool_that_a_sizing_finds(
    capsys: pytest.CaptureFixture[str], run: Any, flags: list[str]
) -> None:
    made = run(*STEP, *flags)["pool"]["num_blocks"]
    assert made == facts(capsys, "size", *MACHINE, *STEP, *flags)["pool"]["num_blocks"]


def test_what_is_quantised_is_read_sooner_and_said(
    capsys: pytest.CaptureFixture[str], run: Any
) -> None:
    plain, packed = run(), run("-q", "awq")
    assert packed["summary"]["tpot_ms"]["mean"] < 0.6 * plain["summary"]["tpot_ms"]["mean"]
    assert any("AWQ 4-bit" in note and "bf16 peak" in note for note in packed["notes"])
    flags = ["--num-requests", "2", "-q", "awq", "--enforce-eager", "--out", "told"]
    _, printed, _ = invoke(capsys, "run", *MACHINE, *flags)
    assert printed.startswith("Llama-3.1-8B (awq weights) on A100-80GB-SXM: ")
    assert "from gpu_memory_utilization 0.92, enforce_eager; KV" in printed


@pytest.mark.parametrize("pool", ["--num-gpu-blocks-override", "--kv-cache-memory-bytes"])
def test_a_given_pool_leaves_nothing_to_eager_mode_and_quantisation(run: Any, pool: str) -> None:
    notes = run(pool, "1000000000" if "bytes" in pool else "900", "--enforce-eager", "-q", "fp8")
    said = [note for note in notes["notes"] if pool in note]
    assert [note.split(":")[0] for note in said] == [
        "--enforce-eager has no effect",
        "--quantization does not change the pool",
    ]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--max-model-len", "1M"],
            "--max-model-len is 1,048,576; Llama-3.1-8B has positions for at most 131,072 tokens; lower it to that",
        ),
        (["--max-model-len", "0"], "--max-model-len is 0; it must be at least 1"),
        (
            ["--max-model-len", "long"],
            "--max-model-len is 'long'; it must be a whole number, also as 8k (8,000) or 8K (8,192)",
        ),
        (
            ["--max-num-batched-tokens", "auto"],
            "--max-num-batched-tokens is 'auto'; it must be a whole number, also as 8k (8,000) or 8K (8,192)",
        ),
        (
            ["--kv-cache-memory-bytes", "1.5G"],
            "--kv-cache-memory-bytes is '1.5G'; G takes whole numbers only: use 1.5g",
        ),
        (
            ["--kv-cache-memory-bytes", "999T"],
            "--kv-cache-memory-bytes is too large; it must be at most 10^15",
        ),
        (
            ["--kv-cache-memory-bytes", "9" * 5000 + "T"],
            "--kv-cache-memory-bytes is '"
            + "9" * 5000
            + "T'; it must be a whole number, also as 8k "
            "(8,000) or 8K (8,192)",
        ),
        (["--block-size", "0"], "--block-size is 0; it must be at least 1"),
        (["--block-size", "1000001"], "--block-size is too large; it must be at most 1,000,000"),
        (["-tp", "0"], "--tensor-parallel-size is 0; it must be at least 1"),
        (["--max-num-seqs", "-1"], "--max-num-seqs is -1; it must be at least 1"),
        (
            ["--max-num-seqs", "9000", "--max-num-batched-tokens", "8k"],
            "--max-num-batched-tokens is 8000; it must be at least --max-num-seqs (9000), because each running "
            "sequence decodes a token in every step",
        ),
        (
            ["--kv-cache-dtype", "fp7"],
            "--kv-cache-dtype is 'fp7' (did you mean fp8?); it must be one of auto, bfloat16, float16, fp8, "
            "fp8_e4m3, fp8_e5m2",
        ),
        (
            ["--served_model_name", "x"],
            f"No such option: --served-model-name ({vllm_flags._ANSWERING}); leave it out",
        ),
    ],
)
def test_a_mistake_gets_the_same_line_from_every_verb(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    flags: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(capsys, verb, *MACHINE, *flags) == (2, "", f"kvtwin: {said}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("-pp", f"-pp ({vllm_flags._OF_ONE_REPLICA})"),
        ("-dp=2", f"-dp ({vllm_flags._OF_ONE_REPLICA})"),
        ("--pipeline_parallel_size", f"({vllm_flags._OF_ONE_REPLICA})"),
        ("--engine-log", f"({vllm_flags._TERM})"),
        ("--weights-gib", f"({vllm_flags._TERM})"),
        ("--accounting", "(runs count as vLLM does; kvtwin size also counts as other engines do)"),
        ("--mem-fraction-static", f"({vllm_flags._FRACTION})"),
        ("--no-trust-remote-code", f"({vllm_flags._LOADING}); leave it out"),
        ("-O3", f"({vllm_flags._COMPUTING}); leave it out"),
        ("--speculative-config", f"({vllm_flags._MISSING}); leave it out"),
        ("--hf-overrides", f"({vllm_flags._CONFIGURED})"),
        ("--disable-chunked-prefill", "(it is --no-enable-chunked-prefill)"),
        ("--lengths", "--lengths (a flag of kvtwin size, not of run); leave it out"),
        (
            "--policies",
            "--policies (a flag of kvtwin compare and validate, not of run: use --policy)",
        ),
        ("--max-len", "(did you mean --max-model-len?); see kvtwin run --help"),
        ("--max-model-length", "(did you mean --max-model-len?); see kvtwin run --help"),
        ("--num-blocks", "(did you mean --num-gpu-blocks-override?); see kvtwin run --help"),
        ("--gpu-util", "(did you mean --gpu-memory-utilization?); see kvtwin run --help"),
        ("--tp", "(did you mean -tp?); see kvtwin run --help"),
        ("--chunked-prefill", "(did you mean --enable-chunked-prefill?); see kvtwin run --help"),
        ("--enforce-eagre", "(did you mean --enforce-eager?); see kvtwin run --help"),
        ("--seeds", "(did you mean --seed?); see kvtwin run --help"),
        ("--scheduling", "--scheduling-policy or --async-scheduling?); see kvtwin run --help"),
        ("--batch-size", "No such option: --batch-size; see kvtwin run --help"),
        ("--answer", "No such option: --answer; see kvtwin run --help"),
        ("-x", "No such option: -x; see kvtwin run --help"),
        ("--x\ny\x1b", "No such option: --x?y?; see kvtwin run --help"),
    ],
)
def test_a_flag_that_a_run_lacks_gets_a_reason_or_what_was_meant(
    capsys: pytest.CaptureFixture[str], flag: str, said: str
) -> None:
    code, out, err = invoke(capsys, "run", *MACHINE, flag)
    assert (code, out) == (2, "")
    assert err.endswith(f"{said}\n"), err


def test_the_flag_of_one_policy_is_told_from_that_of_many(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert invoke(capsys, "validate", "--policy", "paged")[2].endswith(
        "--policy (a flag of kvtwin run, not of validate: use --policies)\n"
    )
    assert invoke(capsys, "calibrate", "--policy", "paged")[2].endswith(
        "not of calibrate); leave it out\n"
    )


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--swap-space", "8GiB", "is '8GiB'; it must be a number (GIB)"),
        ("--swap_space", "8GiB", "is '8GiB'; it must be a number (GIB)"),
        ("--watermark", "0,1", "is '0,1'; it must be a number"),
        ("--max-num-seqs", "1.5", "is '1.5'; it must be a whole number"),
    ],
)
def test_what_is_no_number_is_repeated(
    capsys: pytest.CaptureFixture[str], flag: str, value: str, said: str
) -> None:
    code, out, err = invoke(capsys, "run", *MACHINE, flag, value)
    assert (code, out) == (2, "")
    assert err == f"kvtwin: {flag.replace('_', '-')} {said}; see kvtwin run --help\n"


def test_the_numbers_that_flags_read_are_those_that_files_may_write() -> None:
    assert _HUMAN_READABLE == HUMAN_READABLE


def test_no_reason_is_given_for_what_runs_have() -> None:
    known = {name.replace("_", "-") for name in vars(Inputs())}
    assert not known & vllm_flags._INSTEAD.keys()


@pytest.mark.parametrize("key", ["num-requests", "policies", "rate-scale"])
def test_a_file_is_told_what_only_the_command_line_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, key: str
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'model = "opt-13b"\ngpu = "l4"\n{key} = 3\n')
    said = f"kvtwin: {path}:3: unknown key {key} (give it on the command line: --{key})\n"
    assert invoke(capsys, "compare", "--config", str(path)) == (2, "", said)


def test_what_is_said_to_be_a_flag_of_a_verb_is_one() -> None:
    flags = {flag for verb in VERBS for option in options_of(verb).values() for flag in option.opts}
    assert {f"--{name}" for name in _OF_VERBS} <= flags
