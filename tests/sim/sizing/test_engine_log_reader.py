"""Reading a start-up log: roundings, ranks, several starts in one file, and files that are none."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import engine_logs
import pytest
from engine_logs import read_log, stated

from kvtwin.sim.sizing.engine_log import LogFacts, read_engine_log
from kvtwin.traces import UserError

Read = Callable[[str | bytes], LogFacts]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Write a log and read it."""
    return lambda log: read_log(tmp_path, log)


def test_a_figure_has_its_line_its_unit_and_its_rounding(read: Read) -> None:
    facts = read(engine_logs.VLLM_0_7)
    assert facts.weights is not None
    assert (facts.weights.line_number, facts.weights.rank) == (1, "")
    assert "Loading model weights took 14.9888 GB" in facts.weights.text
    # "GB" is 2**30 bytes here; four decimals are right within half of the last.
    assert facts.weights.num_bytes == round(14.9888 * 2**30)
    assert facts.weights.half_width_bytes == -(-5 * 2**30 // 100_000)
    assert facts.available_kv is not None
    assert facts.available_kv.half_width == Fraction(5, 1000)
    assert facts.num_gpu_blocks is not None
    assert facts.num_gpu_blocks.half_width == 0


def test_trailing_zeros_that_python_drops_do_not_widen_the_rounding(read: Read) -> None:
    facts = read("Available KV cache memory: 5.4 GiB\nGPU KV cache size: 78,384 tokens\n")
    assert facts.available_kv is not None
    assert facts.available_kv.half_width == Fraction(5, 1000)


def test_of_several_ranks_the_smallest_pool_and_the_largest_weights_count(read: Read) -> None:
    facts = read(
        "(Worker_TP0 pid=7) INFO [gpu_model_runner.py:1] Model loading took 18.55 GiB memory and 3 s\n"
        "(Worker_TP1 pid=8) INFO [gpu_model_runner.py:1] Model loading took 18.75 GiB memory and 3 s\n"
        "(Worker_TP0 pid=7) INFO [gpu_worker.py:1] Available KV cache memory: 20.16 GiB\n"
        "(Worker_TP1 pid=8) INFO [gpu_worker.py:1] Available KV cache memory: 19.96 GiB\n"
        "(EngineCore pid=5) INFO [kv_cache_utils.py:1] GPU KV cache size: 130,816 tokens\n"
    )
    assert facts.weights is not None
    assert facts.available_kv is not None
    assert (facts.weights.rank, float(facts.weights.value)) == ("Worker_TP1 pid=8", 18.75)
    assert (facts.available_kv.rank, float(facts.available_kv.value)) == ("Worker_TP1 pid=8", 19.96)
    assert facts.of_rank("available_kv", "Worker_TP0 pid=7") is facts.readings[2]
    # The main process does not state its weights: those that count for all stand in.
    assert facts.of_rank("weights", "") is facts.weights


def test_a_draft_model_does_not_replace_the_model(read: Read) -> None:
    facts = read(
        engine_logs.SGLANG.replace(
            "[2025-03-14 09:20:20 TP0] Capture",
            "[2025-03-14 09:20:13 TP0] Load weight end. type=Draft, dtype=torch.bfloat16,"
            " avail mem=1.50 GB, mem usage=0.50 GB.\n"
            "[2025-03-14 09:20:13 TP0] KV Cache is allocated. #tokens: 46611, K size: 0.10 GB,"
            " V size: 0.10 GB\n[2025-03-14 09:20:20 TP0] Capture",
        )
    )
    assert stated(facts)["weights"] == 15.54
    assert stated(facts)["k_size"] == 1.42


def test_the_last_complete_start_is_read(read: Read) -> None:
    crashed = engine_logs.VLLM_0_8.splitlines()[:5]
    log = engine_logs.VLLM_0_8 + engine_logs.VLLM_0_32 + "\n".join(crashed) + "\n"
    facts = read(log)
    assert stated(facts)["num_tokens"] == 315039
    assert "version" not in stated(facts), "a start before it leaks in"
    assert facts.notes == (
        "the log holds 3 starts; start 2 (lines 10 to 15) is the last one that says how large its"
        " KV pool is, and it is the one read",
    )


def test_starts_without_an_announcement_are_told_apart_by_their_weights(read: Read) -> None:
    run = engine_logs.VLLM_0_7.replace("28119", "27000")
    facts = read(engine_logs.VLLM_0_7 + run)
    assert stated(facts)["num_gpu_blocks"] == 27000
    assert facts.notes == ("the log holds 2 starts; the last one (lines 8 to 14) is the one read",)


def test_data_parallel_engines_are_one_start(read: Read) -> None:
    config = "Initializing a V1 LLM engine (v0.11.0) with config: model='m', data_parallel_size=2"
    engines = ("EngineCore_DP0 pid=5", "EngineCore_DP1 pid=6")
    facts = read(
        "".join(f"({engine}) INFO [core.py:1] {config}\n" for engine in engines)
        + "".join(
            f"({engine}) INFO Model loading took 9.{i} GiB and 3 seconds\n"
            f"({engine}) INFO Available KV cache memory: 2{i}.5 GiB\n"
            f"({engine}) INFO GPU KV cache size: {i + 1}00,000 tokens\n"
            for i, engine in enumerate(engines)
        )
    )
    assert facts.notes == ()
    assert stated(facts)["num_tokens"] == 100_000
    assert stated(facts)["weights"] == 9.1


def test_a_start_without_a_pool_is_read_and_told(read: Read) -> None:
    facts = read("Model loading took 9.5 GiB and 3 seconds\n")
    assert facts.notes == ("the start does not say how large its KV pool is",)


def test_lines_of_another_engine_are_passed_over(read: Read) -> None:
    facts = read("KV Cache is allocated. #tokens: 9, KV size: 1.00 GB\n" + engine_logs.VLLM_0_8)
    assert facts.engine == "vllm"
    assert facts.notes == ("lines that read like sglang are passed over",)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"nothing to see\nat all\n", "has no start-up line of a known engine in its 2 lines"),
        (b"\x7fELF\0\0\0", "is a binary file"),
        (b"\x1f\x8b\x08\0", "is compressed with gzip"),
        ("GPU KV cache size".encode("utf-16"), "is UTF-16 text; save it as UTF-8"),
    ],
)
def test_a_file_that_is_no_log_is_refused(content: bytes, problem: str, read: Read) -> None:
    with pytest.raises(UserError) as raised:
        read(content)
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_was_looked_for_is_said(read: Read) -> None:
    with pytest.raises(UserError, match=r"GPU KV cache size.*max_total_num_tokens.*paged KV cache"):
        read("nothing\n")


def test_paths_that_are_no_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist; check the path"):
        read_engine_log(tmp_path / "absent.log")
    with pytest.raises(UserError, match="is a directory; name a log file"):
        read_engine_log(tmp_path)


def test_bytes_that_are_not_utf8_do_no_harm(read: Read) -> None:
    facts = read(b"caf\xe9 \xff\xfe\n" + engine_logs.VLLM_0_7.encode())
    assert stated(facts)["num_gpu_blocks"] == 28119


def test_a_very_long_line_is_cut(read: Read) -> None:
    long_line = "x" * (1 << 20) + " GPU KV cache size: 1 tokens" + "y" * (1 << 20) + "\n"
    facts = read(engine_logs.VLLM_0_7 + long_line + "GPU KV cache size: 449,904 tokens\n")
    sizes = [reading for reading in facts.readings if reading.name == "num_tokens"]
    assert [(size.value, size.line_number) for size in sizes] == [(449_904, 9)]


def test_a_coloured_figure_is_read(read: Read) -> None:
    facts = read("GPU KV cache size: \x1b[1;32m78,384\x1b[0m tokens\n")
    assert stated(facts) == {"num_tokens": 78384}
