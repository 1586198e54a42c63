"""What layers keep of a request, from the fields of config.json, against arithmetic by hand."""

from typing import Any

import pytest

from kvtwin.sim.checkpoint import model_from_config
from kvtwin.sim.layers import AttentionKv, RecurrentState
from kvtwin.traces import UserError

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 8,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}
MAMBA2 = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
# Kinds of RoPE scaling that vLLM 0.32 does not multiply by (`config/model.py`; the third in
# `transformers_utils/config.py` becomes YaRN first).
SCALED_ALREADY = [
    "yarn",
    "deepseek_yarn",
    "telechat3-yarn",
    "longrope",
    "su",
    "llama3",
    "deepseek_llama_scaling",
]


def read(**changes: Any):
    config = {**LLAMA, **changes}
    return model_from_config(config, name="made", source="made", where="config.json")


def windows(**changes: Any) -> list[int]:
    return [layer.window for layer in read(**changes).attention_layers]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [0] * 8),
        ({"model_type": "mistral", "sliding_window": None}, [4096] * 8),  # the class's default
        ({"model_type": "mistral", "sliding_window": 100}, [100] * 8),
        ({"model_type": "phi3", "sliding_window": 2047}, [2047] * 8),
        ({"model_type": "qwen2", "sliding_window": 100, "max_window_layers": 6}, [0] * 8),
        (
            {"model_type": "qwen2", "sliding_window": 100, "max_window_layers": 6,
             "use_sliding_window": True},
            [0] * 6 + [100] * 2,
        ),
        ({"model_type": "gemma2", "sliding_window": 100}, [100, 0] * 4),
        ({"model_type": "gemma3_text", "sliding_window": 100}, [100] * 5 + [0] + [100] * 2),
        (
            {"model_type": "gemma3_text", "sliding_window": 100, "sliding_window_pattern": 3},
            [100, 100, 0, 100, 100, 0, 100, 100],
        ),
        ({"model_type": "cohere2", "sliding_window": 100}, [100, 100, 100, 0] * 2),
        (
            {"sliding_window": 100,
             "layer_types": ["full_attention", "sliding_attention"] * 4},
            [0, 100] * 4,
        ),
        (
            {"model_type": "llama4_text", "num_local_experts": 2, "num_experts_per_tok": 1,
             "intermediate_size_mlp": 128, "attention_chunk_size": 512},
            [512, 512, 512, 0] * 2,
        ),
    ],
)  # fmt: skip
def test_windows_are_where_the_classes_put_them(
    changes: dict[str, Any], expected: list[int]
) -> None:
    assert windows(**changes) == expected


def test_only_chunks_are_chunked() -> None:
    model = read(
        model_type="llama4_text", num_local_experts=2, num_experts_per_tok=1,
        intermediate_size_mlp=128, attention_chunk_size=512,
    )  # fmt: skip
    assert [layer.chunked for layer in model.attention_layers] == [True, True, True, False] * 2
    windowed = read(sliding_window=100, layer_types=["full_attention", "sliding_attention"] * 4)
    assert not any(layer.chunked for layer in windowed.attention_layers)


def test_text_fields_may_lie_inside_a_multimodal_file() -> None:
    outer = {"model_type": "gemma3", "text_config": {**LLAMA, "model_type": "gemma3_text"}}
    outer["vision_config"] = {"hidden_size": 1152}
    model = model_from_config(outer, name="made", source="made", where="config.json")
    inner = read(model_type="gemma3_text")
    assert (model.layers, model.num_params) == (inner.layers, inner.num_params)
    assert model.note == "weights of vision_config not counted"


def test_layers_that_share_kv_keep_none() -> None:
    model = read(model_type="gemma3n_text", num_kv_shared_layers=3, head_dim=16)
    assert model.layers[-3:] == (None, None, None)
    assert model.kv_bytes_per_token("auto", 1) == 5 * 2 * 2 * 16 * 2


def test_latent_attention_keeps_one_vector_on_every_rank() -> None:
    model = read(
        model_type="deepseek_v2", kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16,
        v_head_dim=16, num_key_value_heads=4,
    )  # fmt: skip
    assert model.layers == (AttentionKv(1, 40, 0, replicated=True),) * 8
    assert model.kv_bytes_per_token("auto", 4) == 8 * 40 * 2


def test_mamba2_keeps_a_state_of_fixed_size() -> None:
    """Convolution: 3 x (128 + 2 x 16) elements of 2 B; recurrence: 4 x 32 x 16 of 2 B."""
    kinds = ["mamba", "attention"] * 4
    model = read(
        model_type="granitemoehybrid", layer_types=kinds, shared_intermediate_size=96,
        num_local_experts=0, num_experts_per_tok=0, **MAMBA2,
    )  # fmt: skip
    state = RecurrentState(3 * 160 * 2 + 4 * 32 * 16 * 2)
    assert model.layers == (state, AttentionKv(2, 16, 16)) * 4
    assert model.state_bytes_per_request(1) == 4 * (960 + 4096)
    assert model.state_bytes_per_request(2) == 4 * (960 + 4096) // 2
    assert model.kv_bytes_per_token("fp8", 1) == 4 * 2 * 2 * 16


def test_states_may_have_32_bits() -> None:
    fields = {**MAMBA2, "attn_layer_indices": [1]}
    short = read(model_type="bamba", **fields).layers[0]
    long = read(model_type="bamba", mamba_ssm_cache_dtype="float32", **fields).layers[0]
    assert isinstance(short, RecurrentState)
    assert isinstance(long, RecurrentState)
    assert long.num_bytes - short.num_bytes == 2 * 4 * 32 * 16


def test_mamba_of_jamba() -> None:
    """3 x 128 and 128 x 16 elements of 2 B; attention where i % 4 == 2."""
    model = read(
        model_type="jamba", attn_layer_period=4, attn_layer_offset=2, mamba_d_state=16,
        mamba_d_conv=4, mamba_expand=2,
    )  # fmt: skip
    recurrent = RecurrentState(2 * (3 * 128 + 128 * 16))
    attention = AttentionKv(2, 16, 16)
    assert model.layers == (recurrent, recurrent, attention, recurrent) * 2


def test_gated_delta_net_of_qwen3_next() -> None:
    """3 x (2 x 32 + 96) and 4 x 24 x 16 elements of 2 B; every fourth layer attends."""
    model = read(
        model_type="qwen3_next", linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=16, linear_value_head_dim=24, linear_conv_kernel_dim=4, head_dim=32,
    )  # fmt: skip
    recurrent = RecurrentState(2 * (3 * 160 + 4 * 24 * 16))
    assert model.layers == (*[recurrent] * 3, AttentionKv(2, 32, 32)) * 2


def test_nemotron_h_has_one_thing_a_layer() -> None:
    """Its Nano-9B-v2 has 8,888,227,328 parameters (shown by the Hugging Face hub, from memory)."""
    pattern = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
    model = read(
        model_type="nemotron_h", hybrid_override_pattern=pattern, num_hidden_layers=56,
        hidden_size=4480, num_attention_heads=40, num_key_value_heads=8, head_dim=128,
        intermediate_size=15680, vocab_size=131_072, mamba_num_heads=128, mamba_head_dim=80,
        n_groups=8, ssm_state_size=128, conv_kernel=4, use_conv_bias=True, use_bias=False,
    )  # fmt: skip
    assert model.num_params == 8_888_227_328
    assert model.layers.count(None) == pattern.count("-")
    assert model.kv_bytes_per_token("auto", 1) == 4 * 2 * 8 * 128 * 2
    # float32 by vLLM's default for this model.
    each = 3 * (10_240 + 2 * 8 * 128) * 2 + 128 * 80 * 128 * 4
    assert model.state_bytes_per_request(1) == pattern.count("M") * each


@pytest.mark.parametrize("missing", sorted(MAMBA2.keys() - {"mamba_expand", "mamba_n_groups"}))
def test_a_hybrid_without_its_states_shape_is_refused(missing: str) -> None:
    fields = {name: value for name, value in MAMBA2.items() if name != missing}
    if missing == "mamba_d_head":
        del fields["mamba_expand"]  # from which it could be computed
        missing = "mamba_expand"
    with pytest.raises(UserError, match=rf"^config.json: {missing} .*missing; add it to the file"):
        read(model_type="bamba", attn_layer_indices=[1], **fields)


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, 4096),
        ({"max_position_embeddings": None, "n_positions": 1024}, 1024),
        ({"seq_length": 2048}, 2048),  # the shortest
        ({"model_max_length": 8192}, 8192),  # goes before the others
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 16384),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 8192),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, 8192),
        ({"rope_parameters": {"rope_type": "proportional", "factor": 8.0}}, 32768),
        ({"rope_scaling": {}, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}, 8192),
        ({"rope_scaling": {"rope_type": "linear", "factor": None}}, 4096),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 4096),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, 4096),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 4.0},
                    "sliding_attention": {"rope_type": "default"},
                }
            },
            16384,
        ),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "yarn", "factor": 4.0},
                    "sliding_attention": None,
                }
            },
            4096,
        ),
        (
            {"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
            4096,
        ),
    ],
)
def test_positions_reach_as_far_as_vllm_says(changes: dict[str, Any], tokens: int) -> None:
    assert read(**changes).max_model_len == tokens


@pytest.mark.parametrize("kind", SCALED_ALREADY)
@pytest.mark.parametrize("spelling", ["rope_type", "type"])
def test_files_of_these_kinds_of_scaling_state_the_scaled_length(kind: str, spelling: str) -> None:
    """vLLM 0.32 `_get_and_verify_max_len`: 40,960, where YaRN had 4 x 32,768 tokens before."""
    scaling = {spelling: kind, "factor": 4.0, "original_max_position_embeddings": 32768}
    model = read(rope_scaling=scaling, max_position_embeddings=40960)
    assert model.max_model_len == 40960
    assert ("write 131,072 there" in model.note) == (kind == "yarn")
    edited = read(rope_scaling=scaling, max_position_embeddings=131_072)
    assert (edited.max_model_len, edited.note) == (131_072, "")


def test_what_vllm_serves_without_being_asked_is_noted() -> None:
    scaling = {"rope_type": "longrope", "short_factor": [1.0]}
    model = read(rope_scaling=scaling, original_max_position_embeddings=1024)
    assert model.max_model_len == 4096
    assert model.note == "vLLM serves 1,024 tokens unless --max-model-len asks for more"
