"""`kvtwin size` from end to end, against arithmetic by hand."""

import math
from pathlib import Path

import pytest
from size_command import GIB, LLAMA, facts, invoke, refused

from kvtwin.analysis.cli import main
from kvtwin.sim.sizing.registry import accounting_names

CUDA_TOTAL = 81_223 * 2**20  # of an A100-80GB: 79.32 GiB in public logs


def test_terms_add_up_to_the_pool_in_whole_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, *LLAMA)
    assert found["schema_version"] == 1
    terms = {term["name"]: term["num_bytes"] for term in found["terms"]}
    assert sum(terms.values()) == found["available_bytes"]
    assert terms["gpu_memory"] == 80 * GIB
    assert terms["gpu_memory"] + terms["driver"] == CUDA_TOTAL
    assert CUDA_TOTAL + terms["held_back"] == math.ceil(0.92 * CUDA_TOTAL)
    assert terms["weights"] == -16_060_522_496  # 8,030,261,248 parameters of 2 bytes
    assert found["kv"]["bytes_per_token"] == 2 * 8 * 128 * 32 * 2
    blocks = found["available_bytes"] // (16 * 131_072)
    assert found["pool"]["num_blocks"] == blocks
    assert found["pool"]["num_reserved_blocks"] == 1
    assert found["concurrency"] == pytest.approx(blocks / (32768 / 16))
    assert all(term["source"] and term["detail"] for term in found["terms"])


def test_the_table_names_every_term_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = invoke(capsys, *LLAMA, "--weights-gib", "15", "--other-gib", "0.5")
    assert (code, err) == (0, "")
    rows = {line[:12].strip(): line.split() for line in out.splitlines()}
    assert rows["weights"][1:4] == ["-15,360.0", "-15.00", "given"]
    assert rows["non torch"][2:5] == ["-512.0", "-0.50", "given"]
    assert rows["activations"][3] == "estimate"
    assert "UNCALIBRATED" in out
    assert "GPU KV cache size: " in out
    assert out.splitlines()[-1].startswith("Fits: Llama-3.1-8B on A100-80GB-SXM (vllm) holds ")


def test_memory_that_is_free_before_loading_is_what_all_else_left(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "start.log"
    log.write_text("Load weight begin. avail mem=21.50 GB\nLoad weight end. avail mem=12.00 GB\n")
    asked = [*LLAMA[:2], "--gpu", "l4", "--max-model-len", "8192"]
    found = facts(capsys, "--engine-log", str(log), *asked)
    terms = {term["name"]: term["num_bytes"] for term in found["terms"]}
    free = terms["gpu_memory"] + terms["driver"] + terms["non_torch"]
    assert free == pytest.approx(21.5 * GIB, abs=1)


def test_given_memory_leaves_nothing_to_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    known = ["--weights-gib", "15", "--activation-gib", "2", "--cuda-graph-gib", "1"]
    found = facts(capsys, *LLAMA, *known, "--other-gib", "0.5", "--gpu-memory-utilization", "0.9")
    assert found["available_bytes"] == math.ceil(0.9 * CUDA_TOTAL) - round(18.5 * GIB)
    assert not any("UNCALIBRATED" in note for note in found["notes"])


def test_the_longest_length_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--model", "llama-3.1-8b", "--gpu", "l4", "--max-model-len", "auto"]
    longest = facts(capsys, *asked)["setting"]["max_model_len"]
    same = [*asked[:-1], str(longest)]
    assert facts(capsys, *same)["works"]
    code, _, err = invoke(capsys, *asked[:-1], str(longest + 1))
    assert code == 2
    assert f"lower --max-model-len to {longest:,}" in err


@pytest.mark.parametrize("accounting", accounting_names())
def test_every_accounting_says_what_it_is(
    capsys: pytest.CaptureFixture[str], accounting: str
) -> None:
    found = facts(capsys, *LLAMA, "--accounting", accounting)
    assert found["accounting"] == accounting
    assert f"({accounting})" in found["verdict"]
    assert found["pool"]["num_tokens"] > 300_000


@pytest.mark.parametrize(("said", "tokens"), [("16k", 16_000), ("16K", 16_384), ("512", 512)])
def test_lengths_as_vllm_takes_them(
    capsys: pytest.CaptureFixture[str], said: str, tokens: int
) -> None:
    assert facts(capsys, *LLAMA[:4], "--max-model-len", said)["setting"]["max_model_len"] == tokens


def test_engines_spellings_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(
        capsys,
        *LLAMA,
        *("-tp", "2", "--mem-fraction-static", "0.8", "--kv-cache-dtype", "fp8_e4m3"),
        *("--accounting", "sglang"),
    )
    assert found["setting"]["tensor_parallel_size"] == 2
    assert found["setting"]["memory_utilization"] == 0.8
    assert found["setting"]["kv_cache_dtype"] == "fp8"


def test_derived_sizes_are_stamped(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, "--model", "gpt-oss-20b", "--gpu", "h100", "--max-model-len", "8192")
    assert found["pool"]["derived"]
    assert any(note.startswith("the size in tokens is derived") for note in found["notes"])
    assert facts(capsys, *LLAMA)["pool"]["derived"] == ""


def test_questions_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(
        capsys,
        *LLAMA[:4],
        *("--max-model-len", "16000", "--num-gpu-blocks-override", "1001"),
        *("--lengths", "mean:1000,600", "--request", "15000,2000", "--shared-prefix-tokens", "240"),
        *("--session-tokens", "1000", "--link-gb-per-s", "25", "--prefill-tokens-per-s", "2000"),
    )
    # 1,000 usable blocks; a request holds 63 to 100 of them, over 600 steps.
    held = [math.ceil((1000 + step) / 16) for step in range(600)]
    assert found["lengths"]["num_running"] == pytest.approx(1000 * 600 / sum(held))
    assert found["lengths"]["num_running_reserved"] == pytest.approx(1000 / 100)
    assert found["request"]["servable"] is True
    assert found["request"]["num_output_tokens"] == 1000  # what is left of max_model_len
    assert found["request"]["planned_end"] == 15_999
    assert found["shared_prefix"]["reusable_tokens"] == 240
    session = found["session"]
    assert session["reload_s"] == pytest.approx(63 * 16 * 131_072 / 25e9)
    assert session["recompute_s"] == 0.5


def test_a_trace_is_a_length_mix(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    main_arguments = ["trace", "synth", "--workload", "sharegpt-like", "--num-requests", "50"]
    with pytest.raises(SystemExit):
        main([*main_arguments, "--seed", "0", "--out", str(trace)])
    capsys.readouterr()
    found = facts(capsys, *LLAMA, "--lengths", str(trace))
    assert found["lengths"]["num_requests"] == 50
    assert found["lengths"]["num_running"] > found["lengths"]["num_running_reserved"]


def test_what_is_estimated_is_stamped(capsys: pytest.CaptureFixture[str]) -> None:
    stamp = "UNCALIBRATED: activations, cuda graphs, non torch: estimated"
    assert any(note.startswith(stamp) for note in facts(capsys, *LLAMA)["notes"])
    _, out, _ = invoke(capsys, *LLAMA)
    assert f"Note: {stamp}" in out
    assert "What would change (all GPUs together, UNCALIBRATED)" in out


def test_replicas_hold_as_much_each(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*LLAMA, "--lengths", "mean:1000,100"]
    one = facts(capsys, *asked)
    two = facts(capsys, *asked, "--data-parallel-size", "2")
    for name in ("num_running", "num_running_reserved"):
        assert two["lengths"][name] == pytest.approx(2 * one["lengths"][name])
    assert f"holds {2 * one['pool']['num_tokens']:,} KV tokens" in two["verdict"]
    # There is memory for more than may run.
    assert one["lengths"]["num_running"] > 256
    assert one["verdict"].endswith("max_num_seqs stops at 256.")
    assert two["verdict"].endswith("max_num_seqs stops at 512.")


def test_levers_are_sized_again(capsys: pytest.CaptureFixture[str]) -> None:
    levers = {lever["change"]: lever for lever in facts(capsys, *LLAMA)["levers"]}
    now = levers["as asked"]
    assert levers["--kv-cache-dtype fp8"]["num_tokens"] == pytest.approx(
        2 * now["num_tokens"], rel=1e-3
    )
    assert levers["--data-parallel-size 2"]["num_tokens"] == 2 * now["num_tokens"]
    assert levers["--data-parallel-size 2"]["num_gpus"] == 2
    assert levers["--tensor-parallel-size 2"]["num_tokens"] > 2 * now["num_tokens"]
    fp8 = facts(capsys, *LLAMA, "--quantization", "fp8")
    assert levers["--quantization fp8"]["num_tokens"] == fp8["pool"]["num_tokens"]


def test_what_does_not_fit_says_which_term_and_what_would(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = invoke(capsys, "--model", "llama-3.1-70b", "--gpu", "l4")
    assert code == 2
    assert err.count("\n") == 1
    assert out.splitlines()[-1] == err.removeprefix("kvtwin: ").rstrip("\n")
    assert "weights (131.42 GiB) are too large by" in err
    assert "raise --tensor-parallel-size to" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "l4"], "no --model given"),
        (["--model", "llama-3.1-8b"], "no --gpu given"),
        (["--model", "lama-3.1-8b", "--gpu", "l4"], "did you mean"),
        ([*LLAMA[:4], "--max-model-len", "131073"], "at most 131,072"),
        ([*LLAMA[:4], "--max-model-len", "long"], "--max-model-len is 'long'"),
        ([*LLAMA[:4], "--max-model-len", "0"], "--max-model-len is 0; it must be at least 1"),
        ([*LLAMA, "--block-size", "0"], "--block-size"),
        ([*LLAMA, "--tensor-parallel-size", "3"], "must divide the 32 attention heads"),
        ([*LLAMA, "--pipeline-parallel-size", "33"], "has 32 layers"),
        ([*LLAMA, "--gpu-memory-utilization", "1.5"], "--gpu-memory-utilization is 1.5"),
        ([*LLAMA, "--gpu-memory-utilization", "nan"], "--gpu-memory-utilization is nan"),
        ([*LLAMA, "--weights-gib", "-1"], "--weights-gib is -1"),
        ([*LLAMA, "--weights-gib", "inf"], "--weights-gib is inf"),
        ([*LLAMA, "--kv-cache-dtype", "fp7"], "did you mean fp8"),
        ([*LLAMA, "--quantization", "awk"], "did you mean awq"),
        ([*LLAMA, "--accounting", "vlm"], "did you mean vllm"),
        ([*LLAMA, "--lengths", "mean:"], "--lengths has ''"),
        ([*LLAMA, "--lengths", "mean:0,5"], "--lengths has '0'"),
        ([*LLAMA, "--lengths", "mean:40000"], "holds at most max_model_len (32,768) tokens"),
        ([*LLAMA, "--lengths", "3000,300"], "must be a trace file, mean:TOKENS"),
        ([*LLAMA, "--lengths", "median:5"], "must be a trace file, mean:TOKENS"),
        ([*LLAMA, "--lengths", "nowhere.csv"], "nowhere.csv"),
        ([*LLAMA, "--request", "5"], "must be two numbers"),
        ([*LLAMA, "--request", "5,x"], "--request has 'x'"),
        ([*LLAMA, "--session-tokens", "5", "--link-gb-per-s", "0"], "--link-gb-per-s is 0"),
        ([*LLAMA, "--engine-log", "nowhere.log"], "nowhere.log"),
        (["--model", "nowhere/config.json", "--gpu", "l4"], "nowhere/config.json"),
        (
            ["--model", "opt-13b", "--gpu-memory-gib", "40", "--session-tokens", "9"],
            "--session-tokens needs --gpu",
        ),
    ],
)
def test_mistakes_get_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert said in refused(capsys, *arguments)


@pytest.mark.parametrize("max_num_seqs", ["2", "1024"])
def test_requests_at_a_time_are_one_number_in_every_sentence(
    capsys: pytest.CaptureFixture[str], max_num_seqs: str
) -> None:
    """Whether memory or max_num_seqs holds them: 92.0 is not 91 some lines below."""
    asked = [*LLAMA, "--lengths", "mean:1000,301", "--max-num-seqs", max_num_seqs]
    found = facts(capsys, *asked)["lengths"]["num_running"]
    assert found % 1 > 0.05
    told = f"{found:,.1f}"
    _, out, _ = invoke(capsys, *asked)
    assert f"  {told} run at a time" in out
    assert f" {told} of mean:1000,301 at a time" in out.splitlines()[-1]
