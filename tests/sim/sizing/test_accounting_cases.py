"""Questions that people asked about the size of their pool: the project's own facts, and the shared collection's."""

import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_models import GIB, attention, deployment, made_gpu, made_model

from kvtwin.sim import find_model
from kvtwin.sim.sizing.deployment import Deployment, Given
from kvtwin.sim.sizing.engines.vllm import VllmPool
from kvtwin.sim.sizing.registry import find_accounting
from kvtwin.sim.sizing.size import Sizing, size

OWN_CASES = Path(__file__).parents[2] / "cases/sizing.toml"
Case = dict[str, Any]


def read_cases(path: Path) -> dict[str, Case]:
    """Cases by id; an `answer` table is as good as its keys."""
    with path.open("rb") as file:
        cases = tomllib.load(file)["case"]
    return {case["id"]: case | case.get("answer", {}) for case in cases}


def sized(accounting: str, what: Deployment) -> Sizing:
    return size(what, find_accounting(accounting))


def said_by_vllm(sizing: Sizing) -> tuple[int, float]:
    """(tokens, concurrency) in the line that vLLM prints."""
    line = sizing.pool.sentences(sizing.deployment)[-1]
    found = re.search(r"size: ([\d,]+) tokens, Maximum concurrency for .* ([\d.]+)x$", line)
    assert found, line
    return int(found[1].replace(",", "")), float(found[2])


def catalogue(case: Case, **fields: Any) -> Deployment:
    return deployment(find_model(case["model"]), **fields)


def given(num_bytes: float) -> Given:
    return Given(int(num_bytes), "log", "printed")


def c01(case: Case) -> None:
    blocks, length = case["pool_blocks"], case["max_model_len"]
    what = catalogue(
        {"model": "llama-3.1-8b"}, num_gpu_blocks_override=blocks, max_model_len=length
    )
    sizing = sized("vllm", what)
    tokens, concurrency = said_by_vllm(sizing)
    assert concurrency == case["max_concurrency"]
    # The printed concurrency has two decimals: half of the last one is 41 tokens.
    assert abs(tokens - case["pool_tokens"]) <= 0.005 * length
    assert math.floor(sizing.pool.concurrency(800)) == case["resident_requests_of_800"]


def c02(case: Case) -> None:
    override, length = case["num_gpu_blocks"], case["max_model_len"]
    sizing = sized("vllm", catalogue(case, num_gpu_blocks_override=override, max_model_len=length))
    assert said_by_vllm(sizing) == (case["pool_tokens"], case["max_concurrency"])
    assert sizing.pool.pool_bytes / GIB == pytest.approx(case["pool_gib"], abs=0.005)


def c03(case: Case) -> None:
    layers = [attention(case["kv_heads"], case["head_dim"])] * case["layers"]
    what = deployment(
        made_model(*layers), max_model_len=case["max_model_len"], kv_cache_memory_bytes=GIB
    )
    sizing = sized("vllm", what)
    assert sizing.kv_bytes_per_token == case["kv_bytes_per_token"]
    assert sizing.pool.bytes_for(case["max_model_len"]) == case["needed_bytes"]
    assert case["needed_bytes"] // sizing.pool.block_bytes == case["needed_blocks"]
    exact = sized("exact", what)
    assert exact.pool.bytes_for(case["max_model_len"]) == case["needed_bytes"]


def c04(case: Case) -> None:
    for run in case["runs"]:
        what = catalogue(
            case,
            gpu=made_gpu(int(case["total_gib"] * GIB)),
            memory_utilization=case["gpu_memory_utilization"],
            max_model_len=run["max_model_len"],
            weights=given(run["torch_peak_gib"] * GIB),  # torch's peak counts both
            activations=given(0),
            cuda_graphs=given(0),
            other=given(case["non_torch_gib"] * GIB),
        )
        sizing = sized("vllm", what)
        assert abs(sizing.num_blocks - run["num_gpu_blocks"]) <= 3
        assert float(sizing.concurrency) == pytest.approx(run["max_concurrency"], abs=0.01)
        assert sizing.works == (run["max_concurrency"] > 1)


def c05(case: Case) -> None:
    what = catalogue(case, kv_cache_memory_bytes=int(case["available_gib"] * GIB))
    hybrid, full = sized("vllm", what), sized("vllm-no-hybrid", what)
    assert full.kv_bytes_per_token == case["kv_bytes_per_token_all_layers"]
    assert hybrid.kv_bytes_per_token == case["kv_bytes_per_token_growing"]
    pool = hybrid.pool
    assert isinstance(pool, VllmPool)
    printed_before = pool.num_blocks // len(pool.groups) * pool.block_size
    assert abs(printed_before - case["pool_tokens"]) <= 100
    assert abs(full.num_blocks * full.pool.block_size - case["pool_tokens"]) <= 100


def c06(case: Case) -> None:
    what = catalogue(case, max_model_len=case["max_model_len"], kv_cache_memory_bytes=64 * GIB)
    for accounting, gib in (
        ("exact", case["kv_gib_windowed"]),
        ("vllm-no-hybrid", case["kv_gib_full"]),
        ("trtllm", case["kv_gib_full"]),
    ):
        held = sized(accounting, what).pool.bytes_for(case["max_model_len"])
        assert case["num_requests"] * held / GIB == pytest.approx(gib, abs=0.005), accounting


def c07(case: Case) -> None:
    model = made_model(*[attention(8, 128)] * 36)  # Qwen3-4B
    what = deployment(
        model,
        gpu=made_gpu(case["total_mib"] * 2**20),
        memory_utilization=case["gpu_memory_utilization"],
        weights=given(case["weights_mib"] * 2**20),
        activations=given(case["activation_peak_mib"] * 2**20),
        cuda_graphs=given(0),
        other=given(case["margin_mib"] * 2**20),
    )
    pool = sized("vllm", what).pool
    assert pool.block_bytes == case["block_bytes"]
    assert pool.num_reserved_blocks == case["reserved_blocks"]
    usable = pool.num_blocks - pool.num_reserved_blocks
    assert abs(usable - case["usable_blocks"]) <= 2
    assert abs(usable * pool.block_size - case["usable_tokens"]) <= 2 * case["block_tokens"]


def c08(case: Case) -> None:
    what = catalogue(case, max_model_len=2048, kv_cache_memory_bytes=case["allocated_bytes"])
    for accounting in ("vllm", "exact", "sglang"):
        sizing = sized(accounting, what)
        assert sizing.kv_bytes_per_token == case["kv_bytes_per_token"]
        assert sizing.pool.num_tokens == case["pool_tokens"]
        assert sizing.pool.bytes_for(4096 + 1024) / GIB == case["one_sequence_gib"]


def c09(case: Case) -> None:
    for gib in (2, 16):
        what = catalogue(case, max_model_len=1024, kv_cache_memory_bytes=gib * GIB)
        exact, blocks = sized("exact", what), sized("vllm", what)
        assert exact.kv_bytes_per_token == case["kv_bytes_per_token"]
        assert exact.longest_request == case[f"tokens_at_{gib}_gib"]
        # Whole blocks of 16, one of them reserved.
        assert case[f"tokens_at_{gib}_gib"] - (blocks.longest_request or 0) in range(16, 32)


def c10(case: Case) -> None:
    model = made_model(*[attention(4, 128)] * 48)
    ample = deployment(
        model,
        kv_cache_dtype="fp8",
        max_model_len=100_000,
        kv_cache_memory_bytes=int(10.55 * GIB),
    )
    sizing = sized("vllm", ample)
    assert sizing.kv_bytes_per_token == case["kv_bytes_per_token"]
    assert abs(said_by_vllm(sizing)[0] - case["tokens_at_10_55_gib"]) <= 200
    scarce = deployment(
        model,
        kv_cache_dtype="fp8",
        max_model_len=221_000,
        kv_cache_memory_bytes=int(5.59 * GIB),
    )
    refused = sized("vllm", scarce)
    assert refused.pool.bytes_to_admit(221_000) / GIB == pytest.approx(
        case["gib_for_221000"], abs=0.005
    )
    assert not refused.works
    estimated = re.search(r"length is (\d+)\.", refused.pool.sentences(scarce)[-1])
    assert estimated
    assert abs(int(estimated[1]) - case["tokens_at_5_59_gib"]) <= 200


def c11(case: Case) -> None:
    """Two printed pools give the slope, which gives the third."""
    model = made_model(*[attention(2, 128)] * 60, num_heads=56)  # one rank of four
    slope = (4485 - 758) * case["block_tokens"] * case["kv_bytes_per_token"] / (50_000 - 20_480)
    assert slope == pytest.approx(case["activation_bytes_per_batched_token"], abs=1000)
    rest = 40 * GIB

    def blocks_at(num_batched_tokens: int) -> int:
        what = deployment(
            model,
            memory_utilization=1.0,
            gpu=made_gpu(rest + int(4485 * 983_040 + 20_480 * slope)),
            weights=given(rest),
            activations=given(num_batched_tokens * slope),
            cuda_graphs=given(0),
            other=given(0),
        )
        sizing = sized("vllm", what)
        assert sizing.kv_bytes_per_token == case["kv_bytes_per_token"]
        return sizing.num_blocks

    assert abs(blocks_at(50_000) - 758) <= 1
    assert abs(blocks_at(30_000) - case["num_gpu_blocks_at_30000"]) <= 20


CHECKS: dict[str, Callable[[Case], None]] = {
    check.__name__.upper(): check
    for check in (c01, c02, c03, c04, c05, c06, c07, c08, c09, c10, c11)
}


@pytest.mark.parametrize("case_id", CHECKS)
def test_questions_with_known_answers(case_id: str) -> None:
    CHECKS[case_id](read_cases(OWN_CASES)[case_id])


@pytest.mark.parametrize("case_id", CHECKS)
def test_questions_of_the_shared_collection(case_id: str, shared_dir: Path) -> None:
    CHECKS[case_id](read_cases(shared_dir / "cases/sizing.toml")[case_id])


def test_both_collections_state_the_same_facts(shared_dir: Path) -> None:
    own, shared = read_cases(OWN_CASES), read_cases(shared_dir / "cases/sizing.toml")
    assert own.keys() == CHECKS.keys()
    for case_id, case in own.items():
        for key in case.keys() - {"id", "provenance"}:
            if key in shared[case_id]:
                assert case[key] == shared[case_id][key], (case_id, key)
