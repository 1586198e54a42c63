"""A sizing: which stage binds, what does not fit and what would help."""

import re
from dataclasses import replace
from typing import Any

import pytest
from made_models import GIB, attention, deployment, made_gpu, made_model, state
from sizing_changes import changed

from kvtwin.sim import find_gpu, find_model
from kvtwin.sim.sizing.changes import changes_that_work
from kvtwin.sim.sizing.deployment import Given
from kvtwin.sim.sizing.estimates import CUDA_GRAPH_BYTES
from kvtwin.sim.sizing.registry import accounting_names, find_accounting
from kvtwin.sim.sizing.size import size
from kvtwin.traces import UserError

every_accounting = pytest.mark.parametrize("name", accounting_names())


@every_accounting
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"gpu": find_gpu("a100-40gb")},
        {"gpu": made_gpu(17 * GIB)},
        {"num_gpu_blocks_override": 1},
        {"kv_cache_memory_bytes": 4096},
        {"kv_cache_memory_bytes": 10**9, "block_size": 32_768},
    ],
)
def test_every_proposed_change_works(name: str, fields: dict[str, Any]) -> None:
    what = deployment(
        find_model("llama-3.1-8b"), **({"max_model_len": 131_072, "gpu": find_gpu("l4")} | fields)
    )
    accounting = find_accounting(name)
    sizing = size(what, accounting)
    changes = changes_that_work(sizing, accounting)
    if sizing.works:
        assert (changes, sizing.problem) == ((), "")
        return
    assert sizing.problem
    assert changes, sizing.problem
    for change in changes:
        assert size(changed(what, change), accounting).works, change


@every_accounting
def test_proposed_changes_are_the_smallest(name: str) -> None:
    """One token longer, or one percent less, does not do."""
    what = deployment(find_model("llama-3.1-8b"), max_model_len=60_000, gpu=made_gpu(45 * GIB // 2))
    accounting = find_accounting(name)
    changes = changes_that_work(size(what, accounting), accounting)
    (shorter,) = [text for text in changes if "--max-model-len" in text]
    length = changed(what, shorter).max_model_len
    assert not size(replace(what, max_model_len=length + 1), accounting).works
    larger = replace(what, max_model_len=length + 1000)
    for text in changes_that_work(size(larger, accounting), accounting):
        if not text.startswith(f"raise {accounting.utilization_flag}"):
            continue
        utilization = changed(larger, text).memory_utilization
        if utilization is not None:
            less = replace(larger, memory_utilization=round(utilization - 0.01, 2))
            assert not size(less, accounting).works
            break
    else:
        assert name == "exact"  # all of the memory is its default


def test_half_the_tokens_of_a_step_may_do() -> None:
    """16,384 tokens take 1.69 GiB; with 8,192 sampling 256 sequences takes more than they: 1.25."""
    what = deployment(
        find_model("llama-3.1-8b"),
        gpu=find_gpu("l4"),
        max_model_len=28_000,
        max_num_batched_tokens=16_384,
    )
    vllm = find_accounting("vllm")
    assert "lower --max-num-batched-tokens to 8,192" in changes_that_work(size(what, vllm), vllm)


def test_weights_that_exceed_memory_are_named() -> None:
    """141.1 GB are 131.4 GiB; 0.92 x 79.65 GiB are there."""
    what = deployment(find_model("llama-3.1-70b"), max_num_seqs=256, enforce_eager=True)
    sizing = size(what, find_accounting("vllm"))
    assert (sizing.num_blocks, sizing.works, sizing.longest_request) == (0, False, 0)
    assert sizing.concurrency == 0
    assert sizing.problem.startswith("no memory is left for KV: weights (131.42 GiB) are too large")
    changes = changes_that_work(sizing, find_accounting("vllm"))
    assert changes == ("use --quantization fp8", "raise --tensor-parallel-size to 2")
    # Weights that were measured change as the estimate does: all but norms and the like is halved.
    known = replace(what, weights=Given(141 * 10**9, "given", "measured on one rank"))
    assert (
        changes_that_work(size(known, find_accounting("vllm")), find_accounting("vllm")) == changes
    )


@pytest.mark.parametrize(("gib", "quantization"), [(79, "fp8"), (48, "awq")])
def test_smaller_weights_that_are_proposed_do(gib: int, quantization: str) -> None:
    """70.6 GB in fp8 are 65.7 GiB, 39.8 GB in AWQ are 37 GiB; a request of 4,096 has 1.25 GiB."""
    what = deployment(find_model("llama-3.1-70b"), gpu=made_gpu(gib * GIB), max_num_seqs=256)
    vllm = find_accounting("vllm")
    proposed = f"use --quantization {quantization}"
    assert proposed in changes_that_work(size(what, vllm), vllm)
    assert size(changed(what, proposed), vllm).works


def test_fewer_sequences_that_are_proposed_do() -> None:
    """Of ceil(22 GiB x 0.92) = 21,732,534,518 B weights take 16,060,522,496, graphs 654,982,512,
    the rest 375,809,638, and sampling 1,024 or 512 sequences 2,020,060,692 or 1,074,454,855.

    That leaves 1,249 or 1,700 blocks of 2,097,152 B, one of them reserved: 19,968 or 27,184 tokens.
    """
    what = deployment(
        find_model("llama-3.1-8b"),
        gpu=made_gpu(22 * GIB),
        max_model_len=25_000,
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
    )
    vllm = find_accounting("vllm")
    before = size(what, vllm)
    assert (before.num_blocks, before.longest_request, before.works) == (1_249, 19_968, False)
    proposed = "lower --max-num-seqs to 512"
    assert proposed in changes_that_work(before, vllm)
    after = size(changed(what, proposed), vllm)
    assert (after.num_blocks, after.longest_request, after.works) == (1_700, 27_184, True)


@pytest.mark.parametrize(("name", "block_size"), [("trtllm", 16), ("vllm", 8)])
def test_smaller_blocks_than_the_engines_own_are_proposed(name: str, block_size: int) -> None:
    """50 tokens of memory for 40: one block of 32, three of 16, six of 8; vLLM reserves one."""
    what = deployment(made_model(attention()), kv_cache_memory_bytes=50 * 4096, max_model_len=40)
    accounting = find_accounting(name)
    sizing = size(what, accounting)
    assert not sizing.works
    proposed = f"lower --block-size to {block_size}"
    assert proposed in changes_that_work(sizing, accounting)
    assert size(changed(what, proposed), accounting).works


def test_a_length_that_does_not_fit_is_named() -> None:
    """20 blocks of 16, one of them reserved: 304 tokens; 512 take 32 blocks of 65,536 B."""
    what = deployment(made_model(attention()), num_gpu_blocks_override=20, max_model_len=512)
    assert size(what, find_accounting("vllm")).problem == (
        "max_model_len (512 tokens) is too large by 208: such a request needs 2,097,152 bytes of KV "
        "and the pool has 1,245,184 bytes for requests"
    )


def test_a_block_that_is_larger_than_the_pool_is_named() -> None:
    what = deployment(
        made_model(attention()),
        block_size=4096,
        kv_cache_memory_bytes=12 * 2**20,
        max_model_len=512,
    )
    sizing = size(what, find_accounting("vllm"))
    assert "one block of 4,096 tokens has 16,777,216 bytes" in sizing.problem
    changes = changes_that_work(sizing, find_accounting("vllm"))
    assert "lower --block-size to 1024" in changes
    assert f"raise --kv-cache-memory-bytes to {2 * 4096 * 4096}" in changes


@every_accounting
def test_a_larger_pool_is_the_smallest_that_does(name: str) -> None:
    accounting = find_accounting(name)
    for field in ("num_gpu_blocks_override", "kv_cache_memory_bytes"):
        what = deployment(made_model(attention(), attention()), **{field: 1})
        (text,) = [t for t in changes_that_work(size(what, accounting), accounting) if "raise" in t]
        enough = changed(what, text)
        less = replace(enough, **{field: getattr(enough, field) - 1})
        assert size(enough, accounting).works
        assert not size(less, accounting).works


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"max_model_len": 2**20 + 1},
            "--max-model-len is 1,048,577; made has positions for at most 1,048,576 tokens",
        ),
        ({"tensor_parallel_size": 3}, "it must divide the 8 attention heads"),
        ({"pipeline_parallel_size": 3}, "--pipeline-parallel-size is 3; made has 2 layers"),
        ({"memory_utilization": 1.1}, "--gpu-memory-utilization is 1.1; it must be above 0"),
    ],
)
def test_settings_that_contradict_the_model_are_refused(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        size(deployment(made_model(attention(), attention()), **fields), find_accounting("vllm"))


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ("", "lower it to that"),
        ("weights of vision_config not counted", "lower it to that"),
        ("131072 positions with YaRN.", "lower it to that (131072 positions with YaRN)"),
        (
            "A dense layer. vLLM 0.32 serves 9 tokens with YaRN, earlier ones 36; towers not counted",
            "lower it to that (vLLM 0.32 serves 9 tokens with YaRN, earlier ones 36)",
        ),
    ],
)
def test_what_a_note_says_of_scaled_positions_is_told(note: str, said: str) -> None:
    model = replace(made_model(attention()), note=note)
    with pytest.raises(UserError) as refused:
        size(deployment(model, max_model_len=2**20 + 1), find_accounting("vllm"))
    assert str(refused.value).endswith(f"at most 1,048,576 tokens; {said}")


@pytest.mark.parametrize(("max_model_len", "allowed"), [(512, 512), (1000, 1000), (2000, 1000)])
def test_the_longest_allowed_is_what_both_the_pool_and_the_length_allow(
    max_model_len: int, allowed: int
) -> None:
    what = deployment(
        made_model(attention()), kv_cache_memory_bytes=1000 * 4096, max_model_len=max_model_len
    )
    sizing = size(what, find_accounting("exact"))
    assert (sizing.longest_request, sizing.longest_allowed) == (1000, allowed)


@every_accounting
def test_a_model_without_kv_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="keeps no KV"):
        size(deployment(made_model(None, None)), find_accounting(name))


@every_accounting
def test_the_stage_with_the_fewest_blocks_binds(name: str) -> None:
    """Three layers of five on the first stage."""
    what = deployment(
        made_model(*[attention()] * 5), pipeline_parallel_size=2, kv_cache_memory_bytes=GIB
    )
    sizing = size(what, find_accounting(name))
    assert sizing.stage == 0
    assert sizing.num_blocks * sizing.pool.block_size in range(GIB // (3 * 4096) - 32, 87_382)
    assert sizing.kv_bytes_per_token == 3 * 4096


def test_what_grows_and_what_does_not() -> None:
    model = made_model(attention(), attention(window=128), state(5000))
    sizing = size(deployment(model, kv_cache_memory_bytes=GIB), find_accounting("exact"))
    assert (sizing.kv_bytes_per_token, sizing.fixed_bytes_per_request) == (4096, 128 * 4096 + 5000)
    only_states = deployment(made_model(state(5000)), kv_cache_memory_bytes=10**6)
    for name in ("vllm", "exact"):
        endless = size(only_states, find_accounting(name))
        assert endless.longest_request is None
        assert (endless.kv_bytes_per_token, endless.fixed_bytes_per_request) == (0, 5000)
    assert size(only_states, find_accounting("exact")).concurrency == 200


def test_eager_mode_takes_no_graphs() -> None:
    what = deployment(find_model("llama-3.1-8b"))
    vllm = find_accounting("vllm")
    graphs = size(what, vllm).available_bytes
    assert (
        size(replace(what, enforce_eager=True), vllm).available_bytes - graphs == CUDA_GRAPH_BYTES
    )


def test_only_the_last_stage_samples() -> None:
    """With 1,024 sequences over 128,256 logits sampling is larger than the layers' peak."""
    what = deployment(find_model("llama-3.1-8b"), pipeline_parallel_size=2)
    first, last = (
        {term.name: term.num_bytes for term in find_accounting("vllm").budget(what, stage)}
        for stage in (0, 1)
    )
    assert first["activations"] == -8192 * 110_592
    # 1,024 x 128,256 logits x 14.4 B, and 0.12 GiB.
    assert last["activations"] == pytest.approx(-(1024 * 128_256 * 14.4 + 0.12 * 2**30), abs=2)


def test_accountings_are_found_by_name() -> None:
    assert accounting_names() == ("vllm", "vllm-no-hybrid", "sglang", "trtllm", "exact")
    assert [find_accounting(name).name for name in accounting_names()] == list(accounting_names())
    with pytest.raises(UserError, match=r"'vlm' \(did you mean vllm\?\); it must be one of vllm, "):
        find_accounting("vlm")
