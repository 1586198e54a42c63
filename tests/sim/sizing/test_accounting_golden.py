"""vLLM's own functions said what 170 random models get: groups, blocks, tokens, refusals."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from made_models import deployment, made_model

from kvtwin.sim.layers import AttentionKv, LayerMemory, RecurrentState
from kvtwin.sim.sizing.deployment import Deployment
from kvtwin.sim.sizing.engines.vllm import VllmPool
from kvtwin.sim.sizing.registry import find_accounting
from kvtwin.sim.sizing.terms import sum_bytes
from kvtwin.traces import UserError

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "cases/vllm_kv_cache_configs.json").read_text(encoding="utf-8")
)


def layer_of(numbers: list[int]) -> LayerMemory:
    if not numbers:
        return None
    if len(numbers) == 1:
        return RecurrentState(numbers[0])
    heads, key_dim, value_dim, window = numbers[:4]
    return AttentionKv(heads, key_dim, value_dim, window, replicated=len(numbers) > 4)


def deployment_of(case: dict[str, Any]) -> Deployment:
    layers = [layer_of(case["kinds"][letter]) for letter in case["pattern"]]
    return deployment(
        made_model(*layers),
        max_model_len=case["max_model_len"],
        max_num_batched_tokens=case["max_num_batched_tokens"],
        tensor_parallel_size=case.get("tensor_parallel_size", 1),
        pipeline_parallel_size=case.get("pipeline_parallel_size", 1),
        block_size=case.get("block_size"),
        kv_cache_dtype="fp8" if case.get("element_bytes") == 1 else "auto",
        enable_prefix_caching=case.get("prefix_caching", True),
        kv_cache_memory_bytes=case["available_mib"] * 2**20,
    )


def pools_of(case: dict[str, Any]) -> list[VllmPool]:
    """One a pipeline stage."""
    what = deployment_of(case)
    accounting = find_accounting("vllm" if case.get("hybrid", True) else "vllm-no-hybrid")
    pools = []
    for stage in range(what.pipeline_parallel_size):
        pool = accounting.pool(what, stage, sum_bytes(accounting.budget(what, stage)))
        assert isinstance(pool, VllmPool)
        pools.append(pool)
    return pools


def answer_to(case: dict[str, Any]) -> object:
    """In the form of the recorded answers."""
    try:
        pools = pools_of(case)
    except UserError:
        return "refused"
    answer: dict[str, Any] = {"groups": [len(group.page_bytes) for group in pools[0].groups]}
    what = deployment_of(case)
    refusing = [pool for pool in pools if not pool.fits(what.max_model_len)]
    if refusing:
        line = refusing[0].sentences(what)[-1]
        gib = re.findall(r"\(([\d.]+) GiB", line)
        longest = re.search(r"length is (\d+)\.", line)
        return answer | {"error": [*gib, int(longest[1]) if longest else 0] if gib else "none"}
    pool = min(pools, key=lambda pool: pool.num_blocks)
    return answer | {
        "num_blocks": pool.num_blocks,
        "num_tokens": pool.num_tokens,
        "concurrency": f"{float(pool.concurrency(what.max_model_len)):.2f}",
        "block_bytes": [pool.block_bytes for pool in pools],
    }


def test_the_collection_has_every_kind_of_answer() -> None:
    answers = [case["answer"] for case in GOLDEN["cases"]]
    assert sum(answer == "refused" for answer in answers) >= 20
    assert sum("error" in answer for answer in answers if answer != "refused") >= 50
    assert sum("num_blocks" in answer for answer in answers if answer != "refused") >= 80
    assert max(len(answer["groups"]) for answer in answers if answer != "refused") >= 8


@pytest.mark.parametrize("number", range(len(GOLDEN["cases"])))
def test_blocks_groups_and_refusals_are_vllms(number: int) -> None:
    case = GOLDEN["cases"][number]
    assert answer_to(case) == case["answer"]
