"""The KV type that a checkpoint asks for, as vLLM 0.32 resolves `--kv-cache-dtype auto`."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_checkpoint_quantization import DENSE, read

from kvtwin.sim.checkpoint import read_model
from kvtwin.traces import UserError

FP8_KV = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
INT8_KV = {**FP8_KV, "type": "int"}
TENSORS = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
        }
    },
}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8"}
NESTED = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}


def nested(**fields: Any) -> dict[str, Any]:
    return {**NESTED, "quantization": {"quant_algo": "FP8", **fields}}


@pytest.mark.parametrize(
    "quantization",
    [
        {**TENSORS, "kv_cache_scheme": FP8_KV},
        {**TENSORS, "quant_method": "compressed_tensors", "kv_cache_scheme": FP8_KV},
        {**TENSORS, "kv_cache_scheme": {**FP8_KV, "dynamic": True}},
        {**MODELOPT, "kv_cache_scheme": FP8_KV},
        {**MODELOPT, "kv_cache_quant_algo": "FP8"},
        nested(kv_cache_quant_algo="FP8"),
        nested(kv_cache_quant_algo="fp8"),
        {**NESTED, "kv_cache_quant_algo": "FP8"},
    ],
)
def test_8_bit_floats_are_what_vllm_then_stores(quantization: dict[str, Any]) -> None:
    model = read(quantization)
    assert (model.shipped_kv_cache_dtype, model.note) == ("fp8", "")


@pytest.mark.parametrize(
    "quantization",
    [
        TENSORS,
        {**TENSORS, "kv_cache_scheme": None},
        {**TENSORS, "kv_cache_quant_algo": "FP8"},  # ModelOpt's word
        MODELOPT,
        NESTED,
        nested(kv_cache_quant_algo=None),
        {"quant_method": "fp8", "kv_cache_scheme": FP8_KV},
    ],
)
def test_other_files_say_nothing_of_the_cache(quantization: dict[str, Any]) -> None:
    model = read(quantization)
    assert (model.shipped_kv_cache_dtype, model.note) == ("", "")


@pytest.mark.parametrize(
    ("quantization", "said"),
    [
        ({**TENSORS, "kv_cache_scheme": INT8_KV}, "kv_cache_scheme is not of 8-bit floats"),
        ({**MODELOPT, "kv_cache_scheme": INT8_KV}, "its kv_cache_scheme asks for is not known"),
        ({**MODELOPT, "kv_cache_scheme": {**FP8_KV, "dynamic": True}}, "is not known here"),
        ({**MODELOPT, "kv_cache_scheme": {**FP8_KV, "num_bits": 4}}, "16 bits are counted"),
        (nested(kv_cache_quant_algo="NVFP4"), "its kv_cache_quant_algo asks for is not known"),
        # The scheme goes before the algorithm.
        ({**MODELOPT, "kv_cache_scheme": INT8_KV, "kv_cache_quant_algo": "FP8"}, "kv_cache_scheme"),
    ],
)
def test_what_is_not_counted_is_noted(quantization: dict[str, Any], said: str) -> None:
    model = read(quantization)
    assert model.shipped_kv_cache_dtype == ""
    assert said in model.note


def test_a_latent_cache_heeds_modelopt_only() -> None:
    latent = {
        "model_type": "deepseek_v2",
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
    }
    tensors = read({**TENSORS, "kv_cache_scheme": FP8_KV}, **latent)
    assert tensors.shipped_kv_cache_dtype == ""
    assert "latent cache" in tensors.note
    assert read({**MODELOPT, "kv_cache_scheme": FP8_KV}, **latent).shipped_kv_cache_dtype == "fp8"


def test_modelopts_own_file_beside_the_config_counts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DENSE))
    assert read_model(tmp_path).shipped_kv_cache_dtype == ""
    beside = nested(kv_cache_quant_algo="FP8")
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    assert read_model(tmp_path).shipped_kv_cache_dtype == "fp8"


def test_weights_that_are_not_known_are_refused_as_before() -> None:
    with pytest.raises(UserError, match="quant_algo"):
        read({**MODELOPT, "quant_algo": "MIXED", "kv_cache_quant_algo": "FP8"})
