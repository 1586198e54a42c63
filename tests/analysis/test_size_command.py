"""`kvtwin size` from end to end, against arithmetic by hand."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from kvtwin.analysis.cli import main
from kvtwin.sim.sizing.registry import accounting_names

LLAMA = ["--model", "llama-3.1-8b", "--gpu", "a100-80gb", "--max-model-len", "32768"]
GIB = 2**30
# A 24 GB card, Llama-3.1-8B, one request of 20,000 tokens; as vLLM 0.6 prints it.
V0_LOG = (
    "INFO model_runner.py:1025] Loading model weights took 14.9888 GB\n"
    "INFO worker.py:266] the current vLLM instance can use total_gpu_memory (23.58GiB) x "
    "gpu_memory_utilization (0.90) = 21.22GiB\n"
    "INFO worker.py:266] model weights take 14.99GiB; non_torch_memory takes 0.35GiB; PyTorch "
    "activation peak memory takes 2.07GiB; the rest of the memory reserved for KV Cache is "
    "3.81GiB.\n"
    "INFO gpu_executor.py:122] # GPU blocks: 1952, # CPU blocks: 2048\n"
    "INFO gpu_executor.py:126] Maximum concurrency for 20000 tokens per request: 1.56x\n"
)


def invoke(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["size", *arguments])
    out, err = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, out, err


def facts(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = invoke(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return dict(json.loads(out))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line about a mistake."""
    code, out, err = invoke(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), (code, out, err)
    return err


def test_terms_add_up_to_the_pool_in_whole_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, *LLAMA)
    assert found["schema_version"] == 1
    terms = {term["name"]: term["num_bytes"] for term in found["terms"]}
    assert sum(terms.values()) == found["available_bytes"]
    assert terms["gpu_memory"] == 80 * GIB
    assert terms["gpu_memory"] + terms["held_back"] == math.ceil(0.92 * 80 * GIB)
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


def test_given_memory_leaves_nothing_to_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    known = ["--weights-gib", "15", "--activation-gib", "2", "--cuda-graph-gib", "1"]
    found = facts(capsys, *LLAMA, *known, "--other-gib", "0.5", "--gpu-memory-utilization", "0.9")
    assert found["available_bytes"] == math.ceil(0.9 * 80 * GIB) - round(18.5 * GIB)
    assert not any("UNCALIBRATED" in note for note in found["notes"])


def test_a_log_fills_in_what_it_states(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "start.log"
    log.write_text(V0_LOG)
    found = facts(capsys, "--engine-log", str(log), "--model", "llama-3.1-8b")
    terms = {term["name"]: term for term in found["terms"]}
    assert {term["source"] for term in terms.values()} == {"log"}
    assert terms["activations"]["mib"] == pytest.approx(-2.07 * 1024, abs=0.01)
    assert found["setting"]["max_model_len"] == 20_000
    compared = {row["figure"]: row for row in found["log"]["compared"]}
    assert compared["num_gpu_blocks"]["printed"] == 1952
    assert abs(compared["num_gpu_blocks"]["difference"]) < 0.005
    assert found["log"]["num_disagree"] == 0
    assert found["log"]["num_agree"] >= 4


def test_a_log_that_contradicts_itself_is_named_in_the_verdict(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "start.log"
    log.write_text(V0_LOG.replace("# GPU blocks: 1952", "# GPU blocks: 1381"))
    found = facts(capsys, "--engine-log", str(log), "--model", "llama-3.1-8b")
    assert found["log"]["first_disagreement"].startswith("line 4: the log says 1,381 blocks, but")
    assert found["log"]["first_disagreement"] in found["verdict"]


def terms_of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {term["name"]: term for term in found["terms"]}


def test_flags_go_before_the_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "start.log"
    log.write_text(V0_LOG)
    asked = ["--engine-log", str(log), "--model", "llama-3.1-8b"]
    found = facts(capsys, *asked, "--max-model-len", "1000", "--weights-gib", "10")
    assert found["setting"]["max_model_len"] == 1000
    weights = terms_of(found)["weights"]
    assert (weights["num_bytes"], weights["source"]) == (-10 * GIB, "given")
    # The log is judged by what it is of, whatever flags ask for.
    assert found["log"]["num_disagree"] == 0
    assert abs(found["log"]["compared"][1]["difference"]) < 0.005


@pytest.mark.parametrize(
    "lever",
    [
        "--kv-cache-dtype fp8",
        "--gpu-memory-utilization 0.95",
        "--quantization fp8",
        "--tensor-parallel-size 2",
    ],
)
def test_a_lever_beside_a_log_is_what_its_flag_makes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, lever: str
) -> None:
    log = tmp_path / "start.log"
    log.write_text(
        "INFO llm_engine.py:237] Initializing an LLM engine (v0.6.4) with config: "
        "model='meta-llama/Llama-3.1-8B-Instruct', speculative_config=None, max_seq_len=20000, "
        "tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None, enforce_eager=False, "
        "kv_cache_dtype=auto, seed=0\n" + V0_LOG
    )
    asked = ["--engine-log", str(log)]
    levers = {found["change"]: found for found in facts(capsys, *asked)["levers"]}
    changed = facts(capsys, *asked, *lever.split())
    assert levers[lever]["num_tokens"] == changed["pool"]["num_tokens"]
    assert levers[lever]["num_tokens"] != levers["as asked"]["num_tokens"]
    assert changed["log"]["num_disagree"] == 0
    assert terms_of(changed)["weights"]["source"] == (
        "estimate" if "quantization" in lever or "tensor" in lever else "log"
    )


def test_a_log_of_another_model_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "start.log"
    log.write_text(
        "INFO Initializing a V1 LLM engine (v0.8.4) with config: model='Qwen/Qwen3-8B', "
        "speculative_config=None, max_seq_len=40960, tensor_parallel_size=1\n"
        "INFO [gpu_worker.py:227] Available KV cache memory: 19.36 GiB\n"
        "INFO [gpu_model_runner.py:1329] Model loading took 15.27 GiB and 4.5 seconds\n"
    )
    other = refused(capsys, "--engine-log", str(log), "--model", "llama-3.1-8b", "--gpu", "l4")
    assert "line 1 of the log names Qwen/Qwen3-8B" in other
    too_small = refused(capsys, "--engine-log", str(log), "--gpu", "l4")
    assert "it is not of Qwen3-8B on L4" in too_small
    assert facts(capsys, "--engine-log", str(log), "--gpu", "a100-40gb")["works"]


def test_the_pool_that_sglang_states_is_taken(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "start.log"
    log.write_text(
        "[2025-01-01 00:00:00] KV Cache is allocated. #tokens: 38141, K size: 2.33 GB, V size: 2.33 GB\n"
        "[2025-01-01 00:00:00] max_total_num_tokens=38141, chunked_prefill_size=2048, "
        "max_prefill_tokens=16384, max_running_requests=2048, context_len=131072\n"
    )
    found = facts(capsys, "--engine-log", str(log), "--model", "llama-3.1-8b", "--gpu", "l4")
    assert found["pool"]["num_tokens"] == pytest.approx(38_141, rel=0.005)
    assert (found["starts"], found["works"]) == (True, False)  # longer requests are refused
    assert found["verdict"].startswith("Starts, but serves no request of max_model_len (131,072)")


def test_kv_memory_that_a_log_states_needs_no_gpu(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "start.log"
    log.write_text(
        "INFO [gpu_worker.py:227] Available KV cache memory: 19.36 GiB\n"
        "INFO [kv_cache_utils.py:716] GPU KV cache size: 140,960 tokens\n"
    )
    found = facts(capsys, "--engine-log", str(log), "--model", "qwen3-8b")
    assert [(term["name"], term["source"]) for term in found["terms"]] == [
        ("kv_cache_memory_bytes", "log")
    ]
    assert found["pool"]["num_tokens"] == 140_960  # 19.36 GiB / (16 x 147,456 B), floor


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
        ([*LLAMA[:4], "--max-model-len", "0"], "--max-model-len is '0'"),
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
