"""Reading a folder: config.json, and the bytes that its weight files state."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from kvtwin.sim import read_model
from kvtwin.traces import UserError

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "my-model"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG))
    return made


def tensors_of(file: Path, sizes: dict[str, int]) -> None:
    """A safetensors file with a header only: the tensors' bytes are never read."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, num_bytes in sizes.items():
        header[name] = {
            "dtype": "BF16", "shape": [num_bytes // 2],
            "data_offsets": [start, start + num_bytes],
        }  # fmt: skip
        start += num_bytes
    raw = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(raw)) + raw)


def index(folder: Path, total: int, names: dict[str, str]) -> None:
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": names})
    (folder / INDEX).write_text(text)


def test_a_folder_and_its_config_are_the_same_model(folder: Path) -> None:
    model = read_model(folder)
    assert model == read_model(folder / "config.json")
    assert model.name == "my-model"
    assert model.source.endswith("config.json")
    other = folder / "other.json"
    other.write_text(json.dumps(CONFIG))
    assert read_model(str(other)).name == "other"


def test_headers_give_the_bytes_of_what_is_loaded(folder: Path) -> None:
    """The layer beyond the model's two and the buffer that engines make are left out."""
    tensors_of(
        folder / "model.safetensors",
        {
            "model.layers.1.mlp.up_proj.weight": 500_000,
            "model.vision_tower.layers.7.weight": 70_000,
            "model.layers.2.mlp.up_proj.weight": 10**6,
            "model.layers.0.self_attn.rotary_emb.inv_freq": 64,
        },
    )
    tensors_of(folder / "consolidated.safetensors", {"layers.0.wq": 10**6})
    model = read_model(folder)
    assert model.weight_bytes == 570_000
    assert "weights by headers of 1 safetensors files" in model.note


def test_a_stored_head_that_is_tied_is_not_loaded(folder: Path) -> None:
    tensors_of(folder / "model.safetensors", {"lm_head.weight": 9000, "model.norm.weight": 1000})
    assert read_model(folder).weight_bytes == 10_000
    (folder / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": True}))
    assert read_model(folder).weight_bytes == 1000


def test_weights_in_32_bits_are_served_in_16(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "torch_dtype": "float32"}))
    tensors_of(folder / "model.safetensors", {"model.norm.weight": 1000})
    assert read_model(folder).weight_bytes == 500


def test_an_index_gives_the_total(folder: Path) -> None:
    shapes = read_model(folder).weight_bytes
    index(folder, shapes + 1234, {"model.norm.weight": "a.safetensors"})
    model = read_model(folder)
    assert model.weight_bytes == shapes + 1234
    assert model.note == f"weights by total_size of {INDEX}: +1,234 bytes on what the shapes give"
    (correction,) = [part for part in model.weights if part.name == "correction"]
    assert correction.num_bytes == 1234


def test_an_index_that_agrees_changes_nothing(folder: Path) -> None:
    before = read_model(folder)
    index(folder, before.weight_bytes, {"model.norm.weight": "a.safetensors"})
    assert read_model(folder).weights == before.weights


def test_an_index_with_tensors_that_are_not_loaded_is_no_evidence(folder: Path) -> None:
    before = read_model(folder)
    index(folder, 10**9, {"model.layers.2.mlp.up_proj.weight": "a.safetensors"})
    assert read_model(folder).weights == before.weights


def test_files_go_before_the_index_if_all_are_there(folder: Path) -> None:
    index(folder, 10**9, {"model.norm.weight": "a.safetensors", "x": "b.safetensors"})
    tensors_of(folder / "a.safetensors", {"model.norm.weight": 1000})
    assert read_model(folder).weight_bytes == 10**9
    tensors_of(folder / "b.safetensors", {"x": 50})
    assert read_model(folder).weight_bytes == 1050


def test_a_quantisation_may_lie_in_a_file_of_its_own(folder: Path) -> None:
    plain = read_model(folder)
    (folder / "hf_quant_config.json").write_text(
        json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}})
    )
    small = read_model(folder)
    assert small.precision == "fp8, one scale a matrix"
    assert small.weight_bytes < plain.weight_bytes


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is not JSON: "),
        (b"\xff\xfe", "is not JSON: "),
        (b"[1]", "holds a JSON array; it must hold an object"),
        (b"[" * 100_000, "is nested too deeply to be read"),
        (b'{"hidden_size": NaN}', "NaN is no JSON number"),
        (b'{"hidden_size": -Infinity}', "-Infinity is no JSON number"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "is not JSON: Exceeds the limit"),
        (b'{"hidden_size": 1e400}', "num_attention_heads"),
        (b"{}", "num_attention_heads (or n_head or n_heads) is missing; add it to the file"),
    ],
)
def test_a_file_that_is_no_config_is_refused(folder: Path, content: bytes, said: str) -> None:
    file = folder / "config.json"
    file.write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_model(folder)
    assert str(refused.value).startswith(f"{file}: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_and_one_that_is_huge_are_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_model(folder / "none.json")
    with (folder / "config.json").open("wb") as file:
        file.truncate(65 * 2**20)
    with pytest.raises(UserError, match=r"has 68,157,440 bytes; at most 67,108,864 are read"):
        read_model(folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"short", "its header has no valid length"),
        (struct.pack("<Q", 2**60), "its header has no valid length"),
        (struct.pack("<Q", 2) + b"{]", "is not JSON"),
        (struct.pack("<Q", 7) + b'{"a":1}', 'tensor "a" has no valid data_offsets'),
    ],
)
def test_a_file_that_is_no_safetensors_is_refused(folder: Path, content: bytes, said: str) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_model(folder)
    assert str(folder / "model.safetensors") in str(refused.value)
    assert said in str(refused.value)
