"""Levers: each is the sizing of a deployment with that change, and what was given changes with it."""

from dataclasses import replace
from typing import Any

import pytest
from made_models import GIB, deployment, made_gpu
from sizing_changes import changed

from kvtwin.sim import find_gpu, find_model
from kvtwin.sim.sizing.deployment import Given
from kvtwin.sim.sizing.levers import levers
from kvtwin.sim.sizing.registry import accounting_names, find_accounting
from kvtwin.sim.sizing.size import size


@pytest.mark.parametrize("name", accounting_names())
@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("llama-3.1-8b", {"gpu": find_gpu("l4")}),
        ("llama-3.1-8b", {"data_parallel_size": 2, "max_num_seqs": 512}),
        ("gpt-oss-20b", {"max_model_len": 131_072, "gpu": find_gpu("l40s")}),
        ("llama-3.1-70b", {"kv_cache_memory_bytes": 9 * GIB}),
    ],
)
def test_every_lever_is_the_sizing_of_the_changed_deployment(
    name: str, model: str, fields: dict[str, Any]
) -> None:
    what, accounting = deployment(find_model(model), **fields), find_accounting(name)
    found = levers(what, accounting)
    assert len(found) > 5
    for lever in found:
        other = what if lever.change == "as asked" else changed(what, lever.change)
        sizing, replicas = size(other, accounting), other.data_parallel_size
        assert lever.pool_bytes == sizing.pool.pool_bytes, lever.change
        assert lever.num_tokens == replicas * sizing.pool.num_tokens, lever.change
        assert lever.concurrency == float(replicas * sizing.concurrency), lever.change
        assert lever.longest_allowed == sizing.longest_allowed, lever.change
        assert lever.problem == sizing.problem, lever.change
        assert lever.num_gpus == other.tensor_parallel_size * replicas, lever.change


def test_what_can_be_changed() -> None:
    what = deployment(find_model("llama-3.1-8b"), gpu=find_gpu("l4"))
    assert [lever.change for lever in levers(what, find_accounting("vllm"))] == [
        "as asked",
        "--kv-cache-dtype fp8",
        "--block-size 32",
        "--block-size 64",
        "--block-size 128",
        "--gpu-memory-utilization 0.85",
        "--gpu-memory-utilization 0.95",
        "--max-num-batched-tokens 8192",
        "--max-num-batched-tokens 16384",
        "--max-num-seqs 128",
        "--enforce-eager",
        "--quantization fp8",
        "--quantization awq",
        "--tensor-parallel-size 2",
        "--tensor-parallel-size 4",
        "--tensor-parallel-size 8",
        "--data-parallel-size 2",
        "--data-parallel-size 4",
    ]


def given(num_bytes: int) -> Given:
    return Given(num_bytes, "given", "by hand")


def test_two_ranks_share_what_was_given_for_one() -> None:
    """Given is twice what shapes give, so it stays twice that; other grows as its estimate does.

    Weights: of 16,060,522,496 B each rank has half, but all of 65 norms of 8,192 B: 8,030,527,488.
    Activations: 3 x 4,096 + 3 x 14,336 / 2 elements are 67,584 B for each of 8,192 tokens. Other:
    from 0.35 to 2.1 GiB. Of 79,027,398,247 B (0.92 x 80 GiB) that leaves 58,906,256,999, which are
    56,177 blocks of 16 x 65,536 B.
    """
    what = deployment(
        find_model("llama-3.1-8b"),
        gpu=made_gpu(80 * GIB),
        max_num_seqs=1,
        weights=given(2 * 16_060_522_496),
        activations=given(2 * 8192 * 110_592),
        cuda_graphs=given(0),
        other=given(GIB),
    )
    left = 79_027_398_247 - 2 * 8_030_527_488 - 2 * 8192 * 67_584 - (GIB + 7 * GIB // 4)
    assert left == 58_906_256_999
    (two,) = [
        lever
        for lever in levers(what, find_accounting("vllm"))
        if lever.change == "--tensor-parallel-size 2"
    ]
    assert two.pool_bytes == 56_177 * 16 * 65_536
    assert two.estimated  # what was given was given for one rank


def test_levers_say_whether_an_estimate_is_in_them() -> None:
    known = deployment(
        find_model("llama-3.1-8b"),
        max_num_seqs=1,
        activations=given(GIB),
        cuda_graphs=given(0),
        other=given(GIB),
    )
    vllm = find_accounting("vllm")
    by_change = {lever.change: lever.estimated for lever in levers(known, vllm)}
    assert not by_change["as asked"]
    assert not by_change["--kv-cache-dtype fp8"]
    assert not by_change["--data-parallel-size 2"]
    assert by_change["--max-num-batched-tokens 16384"]  # activations are scaled
    assert by_change["--tensor-parallel-size 2"]
    guessed = replace(known, other=None)
    assert all(lever.estimated for lever in levers(guessed, vllm))
    fixed = replace(guessed, kv_cache_memory_bytes=GIB)
    assert not any(lever.estimated for lever in levers(fixed, vllm))
