"""Exact bytes of a checkpoint, from the headers of its safetensors files or from its index."""

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvtwin.traces import UserError

from .fields import MAX_JSON_BYTES, Fields, parse_json, read_json

_INDEX = "model.safetensors.index.json"
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
# Tensors that engines make themselves, so that files may hold them or not.
_MADE_BY_ENGINES = ("rotary_emb.inv_freq", "attn.masked_bias")


@dataclass(frozen=True)
class CheckpointBytes:
    """`num_bytes` of the tensors that an engine loads, and where the figure is from."""

    num_bytes: int
    source: str


def checkpoint_bytes(
    folder: Path, num_layers: int, *, tied: bool, in_float32: bool
) -> CheckpointBytes | None:
    """Bytes of the weights in `folder`; None where no file says.

    Layers beyond `num_layers` (for predicting several tokens) are left out, as is a stored head
    that is tied to the embedding. `in_float32`: half, since engines load such models in 16 bits.
    Raises UserError for files that are not safetensors.
    """
    files = _weight_files(folder)
    if files:
        tensors = {name: num for file in files for name, num in _headers(file)}
        loaded = {name: num for name, num in tensors.items() if _is_loaded(name, num_layers, tied)}
        total = sum(loaded.values())
        source = f"headers of {len(files)} safetensors files"
    elif (folder / _INDEX).is_file():
        index = Fields(read_json(folder / _INDEX), str(folder / _INDEX))
        names = index.table("weight_map")
        metadata = index.table("metadata")
        if names is None or metadata is None:
            return None
        if not all(_is_loaded(name, num_layers, tied) for name in names.values):
            return None  # the total has tensors that are not loaded, and their sizes are not known
        total = metadata.whole("total_size", most=10**15)
        source = f"total_size of {_INDEX}"
    else:
        return None
    return CheckpointBytes(total // 2 if in_float32 else total, source)


def _is_loaded(name: str, num_layers: int, tied: bool) -> bool:
    if name.endswith(_MADE_BY_ENGINES) or (tied and name.endswith("lm_head.weight")):
        return False
    if ".visual." in name or "vision" in name:  # layers of their own
        return True
    layer = _LAYER.search(name)
    return layer is None or int(layer[1]) < num_layers


def _weight_files(folder: Path) -> list[Path]:
    """The files that the index names, all of which must be there; without one, all of them.

    Mistral's own format lies beside Hugging Face's under names of its own.
    """
    index = folder / _INDEX
    if index.is_file():
        weight_map = Fields(read_json(index), str(index)).table("weight_map")
        names = {str(name) for name in weight_map.values.values()} if weight_map else set()
        files = [folder / Path(name).name for name in sorted(names)]
        return files if all(file.is_file() for file in files) else []
    return sorted(
        file for file in folder.glob("*.safetensors") if not file.name.startswith("consolidated")
    )


def _headers(file: Path) -> Iterator[tuple[str, int]]:
    """Name and bytes of each tensor: a little-endian length of 8 bytes, then JSON."""
    try:
        with file.open("rb") as opened:
            prefix = opened.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else MAX_JSON_BYTES + 1
            if length > MAX_JSON_BYTES:
                raise UserError(
                    f"{file}: is not a safetensors file: its header has no valid length"
                )
            header = parse_json(opened.read(length), str(file))
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror or error}") from None
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
        if (
            not isinstance(offsets, list)
            or len(offsets) != 2
            or not all(type(offset) is int and 0 <= offset < 2**63 for offset in offsets)
        ):
            raise UserError(f"{file}: tensor {json.dumps(name)[:80]} has no valid data_offsets")
        yield name, max(0, offsets[1] - offsets[0])
