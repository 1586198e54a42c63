"""How weights are shared out over ranks and pipeline stages."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.sim.catalog import find_model, models
from kvtwin.sim.checkpoint import QUANTIZATIONS, quantize
from kvtwin.sim.layers import AttentionKv
from kvtwin.sim.model import ModelSpec, WeightPart
from kvtwin.sim.sizing.deployment import Deployment

every_model = st.sampled_from([model.name for model in models()]).map(find_model)
ranks = st.sampled_from([1, 2, 4, 8, 16, 32, 64])


def test_llama_on_8_and_16_ranks_by_hand() -> None:
    """Q, K, V, O, the feed-forward and the vocabulary are divided, norms are on every rank."""
    hidden, ffn, kv, vocab = 4096, 14336, 1024, 128_256
    divided = 32 * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * ffn) + 2 * vocab * hidden
    norms = 32 * 2 * hidden + hidden
    llama = find_model("llama-3.1-8b")
    assert llama.weight_bytes_per_rank(8) == 2 * (divided // 8 + norms)
    # With 16 ranks each of the 8 KV heads is there twice.
    kept = 32 * 2 * hidden * kv
    assert llama.weight_bytes_per_rank(16) == 2 * ((divided - kept) // 16 + kept // 8 + norms)


def test_latent_projections_and_routers_are_on_every_rank() -> None:
    model = find_model("deepseek-v2-lite")
    alike = sum(part.num_bytes for part in model.weights if part.split == "none")
    # 2048 x 576 a layer, 2048 x 64 of each of 26 routers, norms.
    norms = 27 * (2 * 2048 + 512) + 2048
    assert alike == 2 * (27 * 2048 * 576 + 26 * 2048 * 64 + norms)
    assert model.weight_bytes_per_rank(16) == (model.weight_bytes - alike) // 16 + alike


@given(model=every_model, num_ranks=ranks)
def test_ranks_together_never_hold_less_than_the_whole(model: ModelSpec, num_ranks: int) -> None:
    rank = model.weight_bytes_per_rank(num_ranks)
    assert num_ranks * rank >= model.weight_bytes
    assert rank <= model.weight_bytes


@given(model=every_model, num_ranks=ranks, num_stages=st.integers(1, 12))
def test_stages_hold_everything_and_a_tied_embedding_twice(
    model: ModelSpec, num_ranks: int, num_stages: int
) -> None:
    made = Deployment(model=model, gpu=None, max_model_len=1, pipeline_parallel_size=num_stages)  # type: ignore[arg-type]
    together = sum(model.weight_bytes_per_rank(num_ranks, stage) for stage in made.stages)
    twice = 0
    if model.tied_embeddings and num_stages > 1:
        (embedding,) = [part for part in model.weights if part.name == "embedding"]
        twice = math.ceil(embedding.num_bytes / num_ranks)
    assert together == model.weight_bytes_per_rank(num_ranks) + twice


@given(model=every_model, num_ranks=ranks)
def test_ranks_beyond_the_kv_heads_gain_nothing(model: ModelSpec, num_ranks: int) -> None:
    enough = 1 if model.mla_latent_dim else model.num_kv_heads
    least = model.kv_bytes_per_token("auto", enough)
    assert model.kv_bytes_per_token("auto", enough * num_ranks) == least
    assert model.kv_bytes_per_token("fp8", num_ranks) * 2 == model.kv_bytes_per_token(
        "bfloat16", num_ranks
    )


@given(model=every_model, name=st.sampled_from(sorted(QUANTIZATIONS)), num_ranks=ranks)
def test_quantising_keeps_parameters_and_shrinks_bytes(
    model: ModelSpec, name: str, num_ranks: int
) -> None:
    if model.precision or (name == "mxfp4" and not any(p.name == "experts" for p in model.weights)):
        return
    small = quantize(model, name)
    assert small.num_params == model.num_params
    assert small.layers == model.layers
    bits = QUANTIZATIONS[name].weight_bits
    assert model.weight_bytes * bits / 16 < small.weight_bytes < model.weight_bytes
    assert small.weight_bytes_per_rank(num_ranks) <= model.weight_bytes_per_rank(num_ranks)
    for before, after in zip(model.weights, small.weights, strict=True):
        if before.name in ("embedding", "positions", "output", "norms", "router"):
            assert after == before


def test_a_stage_that_is_none_of_the_models_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        find_model("opt-13b").weight_bytes_per_rank(1, range(41))


def test_parts_before_and_behind_the_layers_go_to_the_first_and_last_stage() -> None:
    model = ModelSpec(
        name="made", hidden_size=1, num_heads=1, num_kv_heads=1, head_dim=1, ffn_size=1,
        vocab_size=1, max_model_len=1, num_active_params=1, source="made",
        layers=(AttentionKv(1, 1, 1),) * 3,
        weights=(
            WeightPart("embedding", 1, 1, "none", None),
            WeightPart("mlp", 1, 10, "none", 0),
            WeightPart("mlp", 1, 100, "none", 2),
            WeightPart("norms", 1, 1000, "none", None),
            WeightPart("output", 1, 10_000, "none", None),
        ),
    )  # fmt: skip
    stages = (range(1), range(1, 2), range(2, 3))
    assert [model.weight_bytes_per_rank(1, stage) for stage in stages] == [11, 0, 11_100]
