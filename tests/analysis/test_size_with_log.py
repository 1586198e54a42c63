"""`kvtwin size` beside an engine's start-up log."""

from pathlib import Path

import pytest
from size_command import GIB, LLAMA, facts, invoke, refused, terms_of

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


def test_why_a_line_is_not_judged_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "start.log"
    log.write_text("INFO 01-01 00:00:00 gpu_worker.py:1] Available KV cache memory: 18.69 GiB\n")
    code, out, _ = invoke(capsys, *LLAMA, "--engine-log", str(log))
    assert code == 0
    assert "0 disagree, 1 not applicable" in out
    assert (
        "line 1: total x utilization - weights - activation peak - non torch: not applicable (the log does not "
        "state total x utilization, weights, activation peak, non torch)"
    ) in out


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


def test_a_log_of_a_variant_is_one_of_its_rows_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "start.log"
    log.write_text(
        "INFO Initializing a V1 LLM engine (v0.8.4) with config: model='Qwen/Qwen2.5-7B-Instruct', "
        "speculative_config=None, max_seq_len=131072, tensor_parallel_size=1\n"
    )
    asked = ("--engine-log", str(log), "--gpu", "h100")
    assert facts(capsys, *asked, "--model", "qwen2.5-7b")["model"] == "Qwen2.5-7B"
    assert "for at most 32,768 tokens; lower it to that (131072 positions" in refused(
        capsys, *asked
    )


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
