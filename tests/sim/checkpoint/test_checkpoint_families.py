"""Parameters of a small model of each family, against Hugging Face's own implementation of it."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvtwin.sim.checkpoint import model_from_config
from kvtwin.traces import UserError

CASES = Path(__file__).parents[2] / "cases" / "models.toml"
FAMILIES = tomllib.loads(CASES.read_text())["families"]


def read(config: dict[str, Any], name: str = "made"):
    return model_from_config(config, name=name, source="made", where="config.json")


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case["label"])
def test_every_tensor_is_counted(case: dict[str, Any]) -> None:
    assert read(case["config"]).num_params == case["counted"]


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case["label"])
def test_all_weights_have_16_bits_but_routers_corrections(case: dict[str, Any]) -> None:
    model = read(case["config"])
    config = case["config"]
    corrections = 0
    if config["model_type"] in ("deepseek_v3", "glm4_moe"):  # float32, one an expert
        sparse = config["num_hidden_layers"] - config["first_k_dense_replace"]
        corrections = sparse * config["n_routed_experts"]
    assert model.weight_bytes == 2 * model.num_params + 2 * corrections


def test_a_tied_head_is_one_tensor_and_an_untied_one_two() -> None:
    config = next(case["config"] for case in FAMILIES if case["label"] == "qwen2")
    tied, untied = (read({**config, "tie_word_embeddings": tied}) for tied in (True, False))
    assert untied.num_params - tied.num_params == config["vocab_size"] * config["hidden_size"]
    assert (tied.tied_embeddings, untied.tied_embeddings) == (True, False)


def test_an_unknown_type_with_llamas_fields_is_read_as_llama_and_says_so() -> None:
    llama = next(case for case in FAMILIES if case["label"] == "llama")
    model = read({**llama["config"], "model_type": "newcomer"})
    assert model.num_params == llama["counted"]
    assert model.note == "model_type newcomer is not known here: read as if it were Llama's"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "mllama"}, "model_type mllama is not known here: its cross-attention"),
        ({"model_type": "falcon_h1"}, "attention and a recurrent state"),
        ({"is_encoder_decoder": True}, "only decoders are known here"),
        ({"model_type": "newcomer", "mamba_d_state": 16}, "mamba_d_state: model_type newcomer"),
        ({"model_type": "newcomer", "block_configs": [{}]}, "block_configs: model_type newcomer"),
        ({"layer_types": ["linear_attention"] * 4}, "this model's state is not known here"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types is a JSON array; it must have 4"),
        ({"layer_types": ["odd"] * 4}, "must not hold 'odd'"),
        ({"layer_types": [[]] * 4}, "layer_types is a JSON array; it must hold strings"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; it must divide the 4"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "hidden_size is 64; it must be a"),
        ({"hidden_size": None}, "hidden_size (or n_embd or d_model) is missing; add it to"),
        ({"vocab_size": None}, "vocab_size is missing; add it to the file"),
        ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
        ({"num_hidden_layers": "4"}, 'num_hidden_layers is "4"; it must be a whole number of 1'),
        ({"num_hidden_layers": True}, "num_hidden_layers is true; it must be a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be 1 to 10,000"),
        ({"intermediate_size": 10**9}, "intermediate_size is 1000000000; it must be 1 to"),
        ({"num_experts": 4}, "num_experts_per_tok"),
        (
            {"num_experts": 4, "num_experts_per_tok": 5},
            "num_experts_per_tok is 5; it must be 1 to 4",
        ),
        ({"tie_word_embeddings": "yes"}, 'tie_word_embeddings is "yes"; it must be true or false'),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(changes: dict[str, Any], said: str) -> None:
    config = next(case["config"] for case in FAMILIES if case["label"] == "llama")
    with pytest.raises(UserError) as refused:
        read({**config, **changes})
    assert said in str(refused.value)
    assert str(refused.value).startswith("config.json: ")
    assert "\n" not in str(refused.value)
