"""Checks of a log against itself: all hold in a good log, and a planted contradiction is named."""

from fractions import Fraction
from pathlib import Path

import engine_logs
import pytest
from engine_logs import read_log

from kvtwin.sim.sizing.engine_log import check_log, first_disagreement

LLAMA_8B = 32 * 8 * 128 * 2 * 2  # bytes per token: layers x KV heads x head size x (K, V) x 2
GOOD = {
    "vllm-0.6.4": (engine_logs.VLLM_0_6_4, LLAMA_8B),
    "vllm-0.7": (engine_logs.VLLM_0_7, LLAMA_8B),
    "vllm-0.8": (engine_logs.VLLM_0_8, 36 * 8 * 128 * 2 * 2),
    "vllm-0.32": (engine_logs.VLLM_0_32, None),
    "vllm-refuses": (engine_logs.VLLM_REFUSES, 48 * 4 * 128 * 2 * 1),
    "sglang": (engine_logs.SGLANG, 64 * 2 * 128 * 2 * 2),
    "sglang-0.5": (engine_logs.SGLANG_0_5, 61 * (512 + 64) * 2),
    "trtllm-cpp": (engine_logs.TRTLLM_CPP, 32 * 16 * 128 * 2 * 2),
    "trtllm-pytorch": (engine_logs.TRTLLM_PYTORCH, 73728),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_log_agrees_with_itself(name: str, tmp_path: Path) -> None:
    log, kv_bytes_per_token = GOOD[name]
    checks = check_log(read_log(tmp_path, log), kv_bytes_per_token)
    assert first_disagreement(checks) is None, str(first_disagreement(checks))
    assert any(check.verdict == "agrees" for check in checks)
    assert [check.line_number for check in checks] == sorted(one.line_number for one in checks)


@pytest.mark.parametrize(
    ("name", "printed", "planted", "line", "said"),
    [
        # The line number is that of the figure that cannot be, in the order of the log.
        ("vllm-0.6.4", "kv_cache_size=3.81", "kv_cache_size=3.99", 3, "says 3.99 GiB, but"),
        ("vllm-0.6.4", "GPU blocks: 1952", "GPU blocks: 1900", 4, "says 1,900 blocks, but"),
        ("vllm-0.6.4", "request: 1.56x", "request: 1.58x", 5, "says 1.58 requests, but"),
        ("vllm-0.7", "(0.90) = 71.33", "(0.90) = 72.33", 3, "says 72.33 GiB, but"),
        ("vllm-0.7", "weights take 14.99", "weights take 15.99", 4, "the weights of line 1"),
        ("vllm-0.7", "is 54.92", "is 54.88", 4, "says 54.88 GiB, but total x utilization"),
        ("vllm-0.7", "blocks: 28119", "blocks: 29119", 5, "says 29,119 blocks, but"),
        ("vllm-0.8", "size: 136,080", "size: 139,088", 7, "says 139,088 tokens, but"),
        ("vllm-0.8", "request: 3.32x", "request: 3.34x", 8, "says 3.34 requests, but"),
        ("vllm-0.32", "in use is 8.64", "in use is 9.64", 6, "but the available kv of line 4"),
        ("vllm-0.32", "is 81.7 GiB", "is 80.7 GiB", 6, "- consumed - activation peak gives"),
        ("vllm-refuses", "(10.12 GiB", "(20.24 GiB", 2, "says 20.24 GiB, but 221,000 tokens"),
        ("vllm-refuses", "length is 122080", "length is 132080", 2, "says 132,080 tokens, but"),
        ("sglang", "usage=15.54", "usage=14.54", 5, "but free before loading - weights"),
        ("sglang", "K size: 1.42", "K size: 1.62", 6, "says 3.04 GiB, but"),
        ("sglang", "num_tokens=46611", "num_tokens=56611", 9, "says 56,611 tokens, but"),
        ("sglang-0.5", "KV size: 160.63", "KV size: 162.63", 3, "says 162.63 GiB, but"),
        ("trtllm-cpp", "cache (259840)", "cache (259904)", 7, "says 259,904 tokens, but blocks"),
        ("trtllm-cpp", "pool: 4060", "pool: 4061", 7, "but blocks x tokens per block gives"),
        ("trtllm-cpp", "Allocated 63.44", "Allocated 64.44", 7, "says 64.44 GiB, but tokens x"),
        ("trtllm-pytorch", "tokens: 5.95", "tokens: 6.95", 8, "- peak + trial pool) x fraction"),
        ("trtllm-pytorch", "cache (86720)", "cache (96720)", 10, "but"),
        ("trtllm-pytorch", "kv size is 73728", "kv size is 73720", 8, "but 73,728 bytes"),
    ],
)
def test_the_first_contradiction_is_named(
    name: str, printed: str, planted: str, line: int, said: str, tmp_path: Path
) -> None:
    log, kv_bytes_per_token = GOOD[name]
    assert log.count(printed) >= 1
    last = log.rindex(printed)
    checks = check_log(
        read_log(tmp_path, log[:last] + planted + log[last + len(printed) :]), kv_bytes_per_token
    )
    first = first_disagreement(checks)
    assert first is not None
    assert (first.line_number, str(first).startswith(f"line {line}: the log says")) == (line, True)
    assert said in str(first)
    assert first.difference is not None
    assert first.allowed is not None
    assert first.difference > first.allowed


def test_only_the_rounding_is_allowed(tmp_path: Path) -> None:
    """71.33 - 14.99 - 1.26 - 0.16 = 54.92; five figures of two decimals leave 0.025 open."""
    facts = read_log(tmp_path, engine_logs.VLLM_0_7.replace("14.9888", "14.99"))
    (check,) = [check for check in check_log(facts) if "non torch" in check.what]
    assert check.difference == 0
    assert check.allowed == Fraction(25, 1000) * 2**30
    for kv, verdict in (("54.94", "agrees"), ("54.95", "disagrees")):
        log = engine_logs.VLLM_0_7.replace("14.9888", "14.99").replace("54.92", kv)
        (check,) = [
            check for check in check_log(read_log(tmp_path, log)) if "non torch" in check.what
        ]
        assert check.verdict == verdict


def test_every_rank_is_checked_with_its_own_figures(tmp_path: Path) -> None:
    budget = "total_gpu_memory (39.49GiB) x gpu_memory_utilization (0.90) = 35.55GiB\n"
    terms = (
        "model weights take {}GiB; non_torch_memory takes {}GiB; PyTorch activation peak memory"
        " takes {}GiB; the rest of the memory reserved for KV Cache is {}GiB.\n"
    )
    driver = terms.format("27.63", "0.93", "1.27", "5.71")
    worker = "(RayWorkerWrapper pid=9) " + terms.format("28.48", "2.15", "1.35", "3.58")
    checks = check_log(read_log(tmp_path, budget + driver + worker))
    assert [check.verdict for check in checks] == ["agrees"] * 3
    checks = check_log(read_log(tmp_path, budget + driver + worker.replace("3.58", "5.71")))
    assert [check.verdict for check in checks] == ["agrees", "agrees", "disagrees"]


def test_the_graph_estimate_may_be_taken_off_or_not(tmp_path: Path) -> None:
    """Published: 15.2 - 0.88 - 0.26 - 0.16 = 13.90, less an estimate of 0.58 is 13.32."""
    log = (
        "(EngineCore pid=79) CUDA graph pool memory: 0.24 GiB (actual), 0.58 GiB (estimated)\n"
        "(EngineCore pid=79) Free memory on device (15.89/16.0 GiB) on startup. Desired GPU memory"
        " utilization is (0.95, 15.2 GiB). Actual usage is 0.88 GiB for weight, 0.26 GiB for peak"
        " activation, 0.16 GiB for non-torch memory, and 0.24 GiB for CUDAGraph memory. Current kv"
        " cache memory in use is {} GiB.\n"
    )
    for kv, verdict in (("13.33", "agrees"), ("13.9", "agrees"), ("13.6", "disagrees")):
        checks = check_log(read_log(tmp_path, log.format(kv)))
        assert [check.verdict for check in checks] == ["agrees", verdict], kv


def test_blocks_of_64_tokens_are_found_and_said(tmp_path: Path) -> None:
    """Published: 4,739 blocks, 1.85 requests of 163,840 tokens: 4,739 x 64 / 163,840 = 1.851."""
    log = (
        "# cuda blocks: 4739, # CPU blocks: 859\n"
        "Maximum concurrency for 163840 tokens per request: 1.85x\n"
    )
    (check,) = check_log(read_log(tmp_path, log))
    assert check.verdict == "agrees"
    assert "blocks of 64 tokens" in check.reason
    (check,) = check_log(read_log(tmp_path, "non-default args: {'block_size': 16}\n" + log))
    assert check.verdict == "disagrees"


HYBRID = """\
Available KV cache memory: 109.86 GiB
WARNING [kv_cache_utils.py:982] Add 8 padding layers, may waste at most 15.38% KV cache memory
GPU KV cache size: 205,696 tokens
Maximum concurrency for 4,096 tokens per request: 50.05x
cache_config_info with initialization after num_gpu_blocks is: 89994
"""


def test_derived_sizes_are_not_checked_and_said_to_be_so(tmp_path: Path) -> None:
    """Published: 89,994 blocks x 16 are seven times the printed tokens, one for each group."""
    facts = read_log(tmp_path, HYBRID)
    checks = check_log(facts, 62 * 16 * 128 * 2 * 2)
    assert {check.verdict for check in checks} == {"not applicable"}
    of_size = [check for check in checks if check.line_number > 1]
    assert len(of_size) == 3
    assert all("line 2 tells of a hybrid model" in check.reason for check in of_size)
    # Where the log has no word of it, the caller knows the model.
    silent = read_log(tmp_path, "".join(HYBRID.splitlines(keepends=True)[2:]))
    assert first_disagreement(check_log(silent)) is not None
    reasons = [check.reason for check in check_log(silent, derived="window layers")]
    assert reasons == ["window layers", "window layers"]


def test_what_is_missing_for_a_check_is_said(tmp_path: Path) -> None:
    log = "Available KV cache memory: 18.69 GiB\n"
    (check,) = check_log(read_log(tmp_path, log))
    assert check.verdict == "not applicable"
    assert str(check) == (
        "line 1: total x utilization - weights - activation peak - non torch: not applicable (the"
        " log does not state total x utilization, weights, activation peak, non torch)"
    )


def test_a_rank_that_does_not_speak_may_have_less(tmp_path: Path) -> None:
    log = "Available KV cache memory: 8.11 GiB\nGPU KV cache size: 178,880 tokens\n"
    of_four = "non-default args: {'tensor_parallel_size': 4}\n" + log
    per_token = 94 * 1 * 128 * 2 * 2
    assert first_disagreement(check_log(read_log(tmp_path, log), per_token)) is not None
    checks = check_log(read_log(tmp_path, of_four), per_token)
    assert first_disagreement(checks) is None
    assert "1 of 4 ranks state their memory" in checks[-1].reason
    more = of_four.replace("178,880", "188,880")
    assert first_disagreement(check_log(read_log(tmp_path, more), per_token)) is not None


def test_an_override_of_the_blocks_is_no_contradiction(tmp_path: Path) -> None:
    log = engine_logs.VLLM_0_8.replace("136,080", "16,000").replace("3.32x", "0.39x")
    override = "Overriding num_gpu_blocks=8505 with num_gpu_blocks_override=1000\n"
    facts = read_log(tmp_path, log + override)
    checks = check_log(facts, 36 * 8 * 128 * 2 * 2)
    assert first_disagreement(checks) is None
    assert any("sets the number of blocks" in check.reason for check in checks)


def test_pools_of_several_kinds_are_not_compared(tmp_path: Path) -> None:
    log = engine_logs.SGLANG.replace("#tokens: 46611", "#tokens: 99999")
    assert first_disagreement(check_log(read_log(tmp_path, log))) is not None
    window = "Use sliding window memory pool. full_layer_tokens=46611, swa_layer_tokens=37288\n"
    checks = check_log(read_log(tmp_path, log + window), 64 * 2 * 128 * 2 * 2)
    assert first_disagreement(checks) is None
    assert sum("more than one kind of pool" in check.reason for check in checks) == 2


def test_the_fraction_is_an_upper_limit(tmp_path: Path) -> None:
    """Published: 6.09 - 0.15 x 21.63 = 2.8455 GiB, right within 0.00575; K and V take 2.84."""
    facts = read_log(tmp_path, engine_logs.SGLANG)
    (check,) = [check for check in check_log(facts) if "fraction" in check.what]
    assert (check.verdict, check.relation) == ("agrees", "<=")
    less = engine_logs.SGLANG.replace("size: 1.42 GB", "size: 1.12 GB")
    (check,) = [one for one in check_log(read_log(tmp_path, less)) if "fraction" in one.what]
    assert check.verdict == "agrees"
    more = engine_logs.SGLANG.replace("size: 1.42 GB", "size: 1.45 GB")
    (check,) = [one for one in check_log(read_log(tmp_path, more)) if "fraction" in one.what]
    assert check.verdict == "disagrees"


def test_attention_windows_with_blocks_of_their_own_are_not_compared(tmp_path: Path) -> None:
    pool = (
        "Max KV cache blocks per sequence: 65 [window size={}], tokens per block=32, primary"
        " blocks={}, secondary blocks=0, max sequence length=2049\n"
    )
    allocated = "[MemUsageChange] Allocated {} GiB for max tokens in paged KV cache ({}).\n"
    trial = pool.format(8224, 257) + allocated.format("0.56", 8224)
    one = pool.format(2049, 13189) + allocated.format("9.06", 422048)
    checks = check_log(read_log(tmp_path, trial + one), 23040)
    assert first_disagreement(checks) is None
    assert [check.verdict for check in checks if "blocks x" in check.what] == ["agrees"]
    two = pool.format(512, 4000) + pool.format(2049, 9189) + allocated.format("9.06", 422048)
    checks = check_log(read_log(tmp_path, trial + two), 23040)
    assert first_disagreement(checks) is None
    assert [check.verdict for check in checks if "blocks x" in check.what] == ["not applicable"]


def test_tokens_of_a_length_that_is_not_whole_blocks(tmp_path: Path) -> None:
    """1,000 blocks of 16; a request of 100 tokens takes 7: 142.857 requests, cut to 14,285 tokens.

    Older versions print 16,000 tokens and 160.00 requests.
    """
    log = (
        "non-default args: {{'block_size': 16}}\n"
        "cache_config_info with initialization after num_gpu_blocks is: 1000\n"
        "GPU KV cache size: {} tokens, Maximum concurrency for 100 tokens per request: {}x\n"
    )
    for tokens, concurrency, verdicts in (
        ("14,285", "142.86", ["agrees", "agrees"]),
        ("16,000", "160.00", ["agrees", "agrees"]),
        ("15,000", "142.86", ["disagrees", "agrees"]),
        ("14,285", "150.00", ["agrees", "disagrees"]),
    ):
        checks = check_log(read_log(tmp_path, log.format(tokens, concurrency)))
        assert [check.verdict for check in checks] == verdicts, (tokens, concurrency)
    # Without the blocks: 14,285 tokens may stand for up to 142.86 requests.
    (check,) = check_log(read_log(tmp_path, log[log.index("GPU") :].format("14,285", "142.86")))
    assert check.verdict == "agrees"


def test_what_is_left_of_a_last_block_is_not_counted(tmp_path: Path) -> None:
    """1,001,500 bytes of 100 a token are 10,015 tokens: 625 blocks of 16, 10,000 tokens."""
    log = "Current kv cache memory in use is 1001500 bytes.\nGPU KV cache size: {} tokens\n"
    for tokens, verdict in (("10,000", "agrees"), ("9,984", "disagrees"), ("10,016", "disagrees")):
        check = check_log(read_log(tmp_path, log.format(tokens)), 100)[-1]
        assert check.verdict == verdict, tokens


def test_workers_that_share_a_label_do_not_contradict_each_other(tmp_path: Path) -> None:
    log = (
        "(VllmWorkerProcess) INFO Loading model weights took 13.9476 GB\n"
        "(VllmWorkerProcess) INFO Loading model weights took 14.1000 GB\n"
    )
    assert first_disagreement(check_log(read_log(tmp_path, log))) is None


def test_sglang_holds_a_page_beside_the_pool(tmp_path: Path) -> None:
    """640 tokens and a page of 64 of 16 MiB each are 11 GiB; without the page 10."""
    log = "server_args=ServerArgs(page_size=64)\nKV Cache is allocated. #tokens: 640, KV size: {} GB\n"
    for kv, verdict in (("11.00", "agrees"), ("11.02", "disagrees"), ("9.98", "disagrees")):
        check = check_log(read_log(tmp_path, log.format(kv)), 16 * 2**20)[-1]
        assert check.verdict == verdict, kv


def test_trtllm_rounds_the_pool_up_to_a_block(tmp_path: Path) -> None:
    """0.9 x 9.50 = 8.55 GiB; blocks of 64 tokens take 0.5 GiB: 18 of them, 9.00 GiB."""
    log = (
        "LLM Args: free_gpu_memory_fraction=0.9, tokens_per_block=64\n"
        "Memory usage when calculating max tokens in paged kv cache: total: 16.00 GiB, available:"
        " 9.50 GiB\n[MemUsageChange] Allocated {} GiB for max tokens in paged KV cache ({}).\n"
    )
    for kv, tokens, verdict in (
        ("9.00", 1152, "agrees"),
        ("9.50", 1216, "disagrees"),
        ("8.50", 1088, "disagrees"),
    ):
        checks = check_log(read_log(tmp_path, log.format(kv, tokens)))
        (check,) = [check for check in checks if "fraction" in check.what]
        assert check.verdict == verdict, kv
