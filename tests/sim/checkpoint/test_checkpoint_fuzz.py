"""No config.json, however odd, does worse than one clear line."""

import contextlib
import json
import tomllib
from pathlib import Path
from typing import Any

from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.sim.checkpoint import model_from_config
from kvtwin.sim.checkpoint.families import FAMILIES
from kvtwin.traces import UserError

CASES = Path(__file__).parents[2] / "cases" / "models.toml"
CONFIGS = [case["config"] for case in tomllib.loads(CASES.read_text())["families"]]
FIELDS = [
    *sorted({name for config in CONFIGS for name in config}),
    "layer_types", "sliding_window", "rope_scaling", "rope_parameters", "quantization_config",
    "text_config", "num_kv_shared_layers", "moe_layer_freq", "model_max_length",
    "hybrid_override_pattern", "mamba_dt_rank", "is_encoder_decoder", "vision_config", "dtype",
]  # fmt: skip
QUANTIZATION_FIELDS = [
    "quant_method", "bits", "group_size", "weight_block_size", "ignore", "dynamic", "quant_algo",
    "modules_to_not_convert", "config_groups", "activation_scheme", "quantization", "producer",
]  # fmt: skip
words = st.sampled_from(
    [*FAMILIES, "fp8", "awq", "gptq", "compressed-tensors", "modelopt", "mxfp4", "auto", "linear",
     "full_attention", "sliding_attention", "mamba", "M*-E", "re:.*", "re:(", "FP8", "Linear"]
)  # fmt: skip
scalars = (
    st.none() | st.booleans() | st.integers() | st.integers(-2, 9) | st.floats() | words | st.text()
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from([*FIELDS, *QUANTIZATION_FIELDS]) | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=examples(600))
@given(
    config=st.sampled_from(CONFIGS),
    changes=st.dictionaries(st.sampled_from(FIELDS), values, max_size=4),
)
def test_a_changed_file_is_read_or_refused(config: dict[str, Any], changes: dict[str, Any]) -> None:
    check({**config, **changes})


@given(
    config=st.sampled_from(CONFIGS),
    quantization=st.dictionaries(st.sampled_from(QUANTIZATION_FIELDS), values, max_size=5),
    method=st.sampled_from(["fp8", "gptq", "awq", "compressed-tensors", "modelopt", "mxfp4"]),
)
def test_a_changed_quantisation_is_read_or_refused(
    config: dict[str, Any], quantization: dict[str, Any], method: str
) -> None:
    check({**config, "quantization_config": {"quant_method": method, **quantization}})


@given(config=st.dictionaries(st.sampled_from(FIELDS), values, max_size=12))
def test_any_object_is_read_or_refused(config: dict[str, Any]) -> None:
    check(config)


def check(config: dict[str, Any]) -> None:
    with contextlib.suppress(UserError):
        model = model_from_config(config, name="made", source="made", where="config.json")
        assert model.weight_bytes > 0
        assert model.kv_bytes_per_token("auto", 1) >= 0
        assert model.max_model_len >= 1
        json.dumps(model.note)
