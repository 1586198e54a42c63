"""Models of the catalogue whose files differ from those of their row, and lengths as files state them."""

import tomllib
from pathlib import Path

import pytest

from kvtwin.sim.catalog import find_model, models
from kvtwin.sim.config import RunConfig
from kvtwin.traces import UserError

CATALOG = Path(__file__).parents[2] / "sim" / "catalog.toml"
ROWS = tomllib.loads(CATALOG.read_text())["models"]


@pytest.mark.parametrize(
    ("typed", "name", "row", "max_model_len"),
    [
        ("Qwen/Qwen2-7B-Instruct", "Qwen2-7B-Instruct", "Qwen2-7B", 32_768),
        # The file prints 32768 in modelscope/ms-swift#3907.
        ("qwen2.5 7b instruct", "Qwen2.5-7B-Instruct", "Qwen2.5-7B", 32_768),
        (
            "Qwen2.5-1.5B-Instruct",
            "Qwen2.5-1.5B-Instruct",
            "Qwen2.5-1.5B",
            32_768,
        ),  # without a note
        ("Qwen/Qwen2.5-72B-Instruct", "Qwen2.5-72B-Instruct", "Qwen2.5-72B", 32_768),
        # The file is quoted in vllm-project/vllm#17306.
        ("qwq-32b", "QwQ-32B", "Qwen2.5-32B", 40_960),
        (
            "mistralai/Mistral-Nemo-Instruct-2407",
            "Mistral-Nemo-Instruct-2407",
            "Mistral-Nemo-12B",
            131_072,
        ),
    ],
)
def test_a_variant_has_its_rows_shape_and_a_length_of_its_own(
    typed: str, name: str, row: str, max_model_len: int
) -> None:
    variant, base = find_model(typed), find_model(row)
    assert (variant.name, variant.max_model_len) == (name, max_model_len)
    assert (variant.layers, variant.weights, variant.source) == (
        base.layers,
        base.weights,
        base.source,
    )
    assert variant.note != base.note
    assert base.max_model_len != max_model_len


def test_variants_are_no_rows_and_are_suggested() -> None:
    names = [variant["name"] for row in ROWS for variant in row.get("variants", ())]
    assert len(names) == 9
    rows = {spelling for model in models() for spelling in (model.name, *model.aliases)}
    assert not set(names) & rows
    with pytest.raises(UserError) as refused:
        find_model("qwen2.5-7b-instruckt")
    hint, known = str(refused.value).split("; known are: ")
    assert "did you mean Qwen2.5-7B-Instruct?" in hint
    assert known.split(", ") == [model.name for model in models()]


def test_a_run_finds_the_variant_again_by_the_name_that_it_stored() -> None:
    stored = RunConfig(model="Qwen/qwen2.5-7b-instruct", gpu="h100").model
    assert stored == "Qwen2.5-7B-Instruct"
    assert RunConfig(model=stored, gpu="h100", max_model_len=32_768).model == stored
    with pytest.raises(
        UserError, match=r"32,769; Qwen2\.5-7B-Instruct has positions for at most 3"
    ):
        RunConfig(model=stored, gpu="h100", max_model_len=32_769)


@pytest.mark.parametrize(
    ("typed", "context"),
    [
        ("deepseek-v2-lite", 32_768),
        ("deepseek-v2", 131_072),
        ("deepseek-v3", 131_072),
        ("deepseek-r1", 131_072),
    ],
)
def test_deepseek_reaches_what_its_files_say(typed: str, context: int) -> None:
    """163,840 = 40 x 4,096 (NVIDIA/Megatron-LM#1418); what the README promises is told."""
    model = find_model(typed)
    assert model.max_model_len == 40 * 4096
    assert f"README states a context of {context}." in model.note
