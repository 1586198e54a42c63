"""Single requests, shared prefixes, and sessions that come back."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sizing_pools import WindowPool

from kvtwin.sim import find_gpu, find_model
from kvtwin.sim.cost import SHIFT, TOTALS, CostModel, CostTerm, roofline_cost
from kvtwin.sim.sizing.questions import (
    recompute_s,
    reload_s,
    reusable_prefix_tokens,
    servable,
)

CASES = {
    case["id"]: case
    for case in tomllib.loads(
        (Path(__file__).parents[2] / "cases/questions.toml").read_text(encoding="utf-8")
    )["case"]
}


def test_whole_blocks_of_a_prefix_are_reusable() -> None:
    case = CASES["C13"]
    for block_size, tokens in case["reusable_by_block_size"].items():
        assert reusable_prefix_tokens(case["shared_prefix_tokens"], int(block_size)) == tokens


def test_reload_is_bytes_over_the_link() -> None:
    case = CASES["C19"]
    assert reload_s(case["kv_bytes_low"], case["link_bytes_per_s"]) == case["reload_s_low"]
    assert reload_s(case["kv_bytes_high"], case["link_bytes_per_s"]) == case["reload_s_high"]


def per_token_cost(tokens_per_s: float) -> CostModel:
    ns = round(1e9 / tokens_per_s * 2**SHIFT)
    coefficients = tuple(ns if total == "num_prefill_tokens" else 0 for total in TOTALS)
    return CostModel("rate", True, (CostTerm("rate", 0, coefficients),))


def test_recompute_at_a_given_rate() -> None:
    case = CASES["C19"]
    cost = per_token_cost(case["prefill_tokens_per_s"])
    assert recompute_s(cost, case["tokens"], 8192) == pytest.approx(case["recompute_s"])


@given(num_tokens=st.integers(1, 400), chunk=st.integers(1, 100))
def test_each_token_attends_to_itself_and_to_all_before_it(num_tokens: int, chunk: int) -> None:
    pairs_only = tuple(1 << SHIFT if total == "prefill_pairs" else 0 for total in TOTALS)
    cost = CostModel("pairs", True, (CostTerm("pairs", 0, pairs_only),))
    pairs = sum(position + 1 for position in range(num_tokens))
    assert recompute_s(cost, num_tokens, chunk) == pytest.approx(pairs / 1e9)


def test_a_long_session_is_cheaper_to_reload_than_to_recompute() -> None:
    model, gpu = find_model("llama-3.1-8b"), find_gpu("h100")
    cost = roofline_cost(model, gpu, "auto", 1)
    bytes_held = 100_000 * model.kv_bytes_per_token("auto", 1)
    # 2 FLOPs a parameter and token alone, at the full peak of the card.
    least_s = 2 * model.num_params * 100_000 / gpu.bf16_flops_per_s
    assert recompute_s(cost, 100_000, 8192) > least_s
    assert reload_s(bytes_held, gpu.pcie_bytes_per_s) < least_s


def test_a_request_is_judged_with_both_numbers() -> None:
    pool = WindowPool(
        num_blocks=11, block_size=10, window=1
    )  # 10 usable: 9 blocks and the window's
    fits = servable(pool, num_prompt_tokens=80, max_tokens=11, max_model_len=1000)
    assert (fits.planned_end, fits.num_bytes, fits.reason) == (90, 10, "")
    refused = servable(pool, num_prompt_tokens=80, max_tokens=12, max_model_len=1000)
    assert refused.planned_end == 91
    assert "holds 91 tokens at its end, 11 bytes of KV, and the pool has 10" in refused.reason
    clipped = servable(pool, num_prompt_tokens=80, max_tokens=500, max_model_len=91)
    assert (clipped.num_output_tokens, clipped.planned_end, clipped.reason) == (11, 90, "")
    too_long = servable(pool, num_prompt_tokens=91, max_tokens=1, max_model_len=91)
    assert "prompt of 91 tokens is not shorter than max_model_len (91)" in too_long.reason


@pytest.mark.parametrize("case_id", sorted(CASES))
def test_the_facts_are_those_that_were_collected(shared_dir: Path, case_id: str) -> None:
    shared: dict[str, Any] = {
        case["id"]: case
        for case in tomllib.loads((shared_dir / "cases/sizing.toml").read_text())["case"]
    }[case_id]
    known = {key: value for key, value in CASES[case_id].items() if not isinstance(value, dict)}
    for key, value in {**shared, **shared["answer"]}.items():
        if key in known:
            assert known[key] == value, key
