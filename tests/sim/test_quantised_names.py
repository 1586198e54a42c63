"""Names of models whose files were quantised by somebody else."""

import pytest

from kvtwin.sim import find_model, quantize
from kvtwin.traces import UserError


@pytest.mark.parametrize(
    ("typed", "flags"),
    [
        ("Qwen/Qwen3-8B-FP8", "--model qwen3-8b --quantization fp8"),
        ("qwen3-8b-awq", "--model qwen3-8b --quantization awq"),
        ("Qwen3-8B-GPTQ-Int4", "--model qwen3-8b --quantization gptq"),
        ("x/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "--model llama-3.1-8b --quantization awq"),
        ("x/Llama-3.1-8B-Instruct-FP8-dynamic", "--model llama-3.1-8b --quantization fp8"),
        ("x/Llama-3.1-8B-Instruct-quantized.w8a8", "--model llama-3.1-8b --quantization int8"),
        ("qwen3-8b-int4", "--model qwen3-8b --quantization w4a16"),
    ],
)
def test_a_model_of_quantised_files_is_told_its_flags(typed: str, flags: str) -> None:
    with pytest.raises(UserError) as refused:
        find_model(typed)
    assert str(refused.value) == (
        f"--model {typed} is not in the catalogue, which has models as they are first shipped; use {flags}"
    )
    _, model, _, quantization = flags.split()
    assert quantize(find_model(model), quantization).precision


@pytest.mark.parametrize("typed", ["qwen3-8b-gptq-int8", "fp8", "opt-fp8", "deepseek-v3-awq"])
def test_what_cannot_be_made_of_a_model_is_not_proposed(typed: str) -> None:
    """Not supported, no model, several models, and one that is shipped quantised."""
    with pytest.raises(UserError) as refused:
        find_model(typed)
    assert "--quantization" not in str(refused.value)
