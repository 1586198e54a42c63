"""Bytes of quantised weights, counted tensor by tensor as the files have them."""

from collections.abc import Callable
from typing import Any

import pytest

from kvtwin.sim.catalog import find_model
from kvtwin.sim.checkpoint import model_from_config, quantize
from kvtwin.traces import UserError

HIDDEN, FFN, VOCAB, KV = 256, 512, 1000, 128
DENSE = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": HIDDEN,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": FFN,
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
}
# (inputs, outputs) of the linear layers of one layer.
LINEAR = {
    "q_proj": (HIDDEN, HIDDEN),
    "k_proj": (HIDDEN, KV),
    "v_proj": (HIDDEN, KV),
    "o_proj": (HIDDEN, HIDDEN),
    "gate_proj": (HIDDEN, FFN),
    "up_proj": (HIDDEN, FFN),
    "down_proj": (FFN, HIDDEN),
}
# Embedding, head, norms: in 16 bits in every format.
UNTOUCHED = 2 * (2 * VOCAB * HIDDEN + 2 * 2 * HIDDEN + HIDDEN)


def read(quantization: dict[str, Any], **changes: Any):
    config = {**DENSE, **changes, "quantization_config": quantization}
    return model_from_config(config, name="made", source="made", where="config.json")


def total(each, *, plain: tuple[str, ...] = ()) -> int:
    """Bytes of two layers with `each(inputs, outputs)` a matrix, `plain` ones in 16 bits."""
    return UNTOUCHED + 2 * sum(
        2 * inputs * outputs if name in plain else each(inputs, outputs)
        for name, (inputs, outputs) in LINEAR.items()
    )


def awq(inputs: int, outputs: int) -> int:
    qweight, qzeros = 4 * inputs * outputs // 8, 4 * (inputs // 128) * outputs // 8
    return qweight + qzeros + 2 * (inputs // 128) * outputs


def gptq(inputs: int, outputs: int) -> int:
    return awq(inputs, outputs) + 4 * inputs  # int32 of g_idx


def block_fp8(inputs: int, outputs: int) -> int:
    return inputs * outputs + 4 * (inputs // 128) * (outputs // 128)


W4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
W8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor"}


def group(weights: dict[str, Any], *ignored: str) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head", *ignored],
    }


@pytest.mark.parametrize(
    ("quantization", "num_bytes"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, total(awq)),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, total(gptq)),
        (
            {"quant_method": "gptq", "bits": 8, "group_size": -1},
            total(lambda i, o: i * o + o + 2 * o + 4 * i),
        ),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, total(block_fp8)),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, total(lambda i, o: i * o + 4)),
        ({"quant_method": "fp8", "activation_scheme": "static"}, total(lambda i, o: i * o + 8)),
        ({"quant_method": "fbgemm_fp8"}, total(lambda i, o: i * o + 4 * o)),
        (group(W4), total(lambda i, o: i * o // 2 + 2 * (i // 128) * o + 16)),
        (
            group({**W4, "symmetric": False}),
            total(lambda i, o: i * o // 2 + (2 * (i // 128) * o) * 5 // 4 + 16),
        ),
        (group(W8), total(lambda i, o: i * o + 2 * o)),
        (group(FP8), total(lambda i, o: i * o + 2)),
        (
            group(W8, "re:.*down_proj"),
            total(lambda i, o: i * o + 2 * o, plain=("down_proj",)),
        ),
        (
            {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]},
             "producer": {"name": "modelopt"}},
            total(lambda i, o: i * o // 2 + i * o // 16 + 8),
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["model.layers.*.mlp*"]},
            total(lambda i, o: i * o + 8, plain=("gate_proj", "up_proj", "down_proj")),
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            total(lambda i, o: i * o // 2 + i * o // 64),
        ),
    ],
)  # fmt: skip
def test_every_format_by_hand(quantization: dict[str, Any], num_bytes: int) -> None:
    model = read(quantization)
    assert model.weight_bytes == num_bytes
    assert model.precision


def test_what_is_left_out_of_one_layer_keeps_16_bits() -> None:
    ignored = ["model.layers.1.self_attn.q_proj", "lm_head"]
    model = read({"quant_method": "fp8", "modules_to_not_convert": ignored})
    everywhere = total(lambda i, o: i * o + 4)
    assert model.weight_bytes == everywhere + HIDDEN * HIDDEN - 4


@pytest.mark.parametrize(
    ("pattern", "plain"),
    [
        ("re:.*lm_head", ()),
        ("re:.*mlp.gate$", ()),
        ("re:.*self_attn.(q|k)_proj$", ("q_proj", "k_proj")),
        (r"re:model\.layers\.\d+\.self_attn\..*", ("q_proj", "k_proj", "v_proj", "o_proj")),
        ("re:.*layers.[0-9]+.*mlp.*(gate|up)_proj", ("gate_proj", "up_proj")),
    ],
)
def test_patterns_of_real_files_are_matched(pattern: str, plain: tuple[str, ...]) -> None:
    each = total(lambda i, o: i * o + 4, plain=plain)
    assert read({"quant_method": "fp8", "ignore": [pattern]}).weight_bytes == each


@pytest.mark.parametrize(
    "pattern",
    [
        "^(([a-z_.0-9])+)+!$",
        "(model|layers|.)*!",
        "([a-z]|.){2,}!",
        ".*.*.*.*.*.*!",
    ],
)
def test_patterns_that_could_match_for_ever_are_refused(pattern: str) -> None:
    """All names of modules begin as these do, and none ends so: every way to match them is tried."""
    for quantization in (
        {"quant_method": "fp8", "ignored_layers": [f"re:{pattern}"]},
        {"quant_method": "gptq", "dynamic": {f"-:{pattern}": {}}},
        {"quant_method": "bitsandbytes", "llm_int8_skip_modules": [f"re:{pattern}"]},
    ):
        with pytest.raises(UserError) as refused:
            read(quantization)
        assert str(refused.value).startswith("config.json: quantization_config: ")
        assert f"must not hold 're:{pattern}': a repeated group, or more" in str(refused.value)
        assert "\n" not in str(refused.value)


def test_compressed_tensors_pack_the_head_unless_told_not_to() -> None:
    kept, packed = group(W8), group(W8)
    packed["ignore"] = []
    saved = read(kept).weight_bytes - read(packed).weight_bytes
    assert saved == VOCAB * HIDDEN - 2 * VOCAB


@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("fp8", lambda i, o: i * o + 4),
        ("fp8-block", block_fp8),
        ("int8", lambda i, o: i * o + 2 * o),
        ("awq", awq),
        ("gptq", gptq),
        ("w4a16", lambda i, o: i * o // 2 + 2 * (i // 128) * o),
        ("nvfp4", lambda i, o: i * o // 2 + i * o // 16 + 8),
        ("bitsandbytes", lambda i, o: i * o // 2 + i * o // 64),
    ],
)
def test_what_a_model_becomes_by_hand(name: str, each: Callable[[int, int], int]) -> None:
    plain = model_from_config(DENSE, name="made", source="made", where="config.json")
    assert quantize(plain, name).weight_bytes == total(each)


def test_mxfp4_is_for_experts_only() -> None:
    """4.25 bits a weight of the experts, all else in 16."""
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "model_type": "mixtral"}
    plain, small = (
        model_from_config({**DENSE, **experts, **more}, name="m", source="m", where="m")
        for more in ({}, {"quantization_config": {"quant_method": "mxfp4"}})
    )
    weights = 2 * 4 * 3 * HIDDEN * FFN
    assert plain.weight_bytes - small.weight_bytes == 2 * weights - weights * 17 // 32


def test_deepseek_v3_with_its_second_token_is_what_the_hub_shows() -> None:
    """688.6 GB in all (Hugging Face hub, from memory): the main model, and one layer more.

    That layer comes with its own embedding and head, a projection of 2 x 7168 to 7168, three norms.
    """
    model = find_model("deepseek-v3")
    layer = sum(part.num_bytes for part in model.weights if part.layer == 60)
    own = 2 * (2 * 129_280 * 7168 + 2 * 7168 * 7168 + 3 * 7168)
    assert (model.weight_bytes + layer + own) / 1e9 == pytest.approx(688.6, abs=0.05)


def test_llama_in_awq_is_as_large_as_its_file() -> None:
    """5.7 GB on the Hugging Face hub (Meta-Llama-3.1-8B-Instruct-AWQ-INT4, from memory)."""
    small = quantize(find_model("llama-3.1-8b"), "awq")
    assert small.weight_bytes / 1e9 == pytest.approx(5.7, abs=0.05)


@pytest.mark.parametrize(
    ("model", "name", "said"),
    [
        ("llama-3.1-8b", "fp9", r"--quantization fp9 is not known \(did you mean fp8\?\); known"),
        ("deepseek-v3", "fp8", r"DeepSeek-V3 is shipped quantised \(fp8, .*leave the flag out"),
        ("llama-3.1-8b", "mxfp4", "is for experts, and Llama-3.1-8B has none"),
    ],
)
def test_what_cannot_be_quantised_is_refused(model: str, name: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        quantize(find_model(model), name)


@pytest.mark.parametrize(
    ("quantization", "said"),
    [
        ({"quant_method": "aqlm"}, 'quant_method is "aqlm"; it must be one of fp8, fbgemm-fp8'),
        ({"quant_method": "gptq", "bits": 5}, "bits is 5; it must be 2, 3, 4 or 8"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "must be two whole numbers above 0"),
        ({"quant_method": "fp8", "ignored_layers": ["re:("]}, "which is no regular expression"),
        ({"quant_method": "compressed-tensors"}, "config_groups is missing"),
        (group({**W8, "num_bits": 5}), "num_bits is 5; it must be 4 or 8"),
        (group({**W8, "strategy": "token"}), 'strategy is "token"; it must be one of tensor'),
        ({"quant_method": "gptq", "dynamic": {"x": {"bits": 8}}}, "must only leave modules out"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, 'quant_algo is "W4A8"; it must be'),
    ],
)
def test_formats_that_are_not_known_are_refused(quantization: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        read(quantization)
    assert said in str(refused.value)
    assert str(refused.value).startswith("config.json: quantization_config")
