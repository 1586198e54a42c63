"""One model: its shape, what each layer keeps of a request, and its weights."""

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from kvtwin.traces import UserError

from .layers import AttentionKv, LayerMemory, RecurrentState

# 'auto' keeps the KV cache in the 16 bits that every model of the catalogue computes in.
KV_DTYPE_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1}
FP8_FORMATS = ("fp8_e4m3", "fp8_e5m2")  # what vLLM calls fp8 in full
# Over the ranks of a tensor-parallel group. even: columns, rows, vocabulary or experts are divided.
# kv_heads: at least one head a rank, so copies where ranks outnumber the KV heads. none: each rank
# holds all.
Split = Literal["even", "kv_heads", "none"]
# Parts before the first layer; `correction` is mostly a tower for images, which is there, too.
INPUT_PARTS = ("embedding", "positions", "embedding_norm", "layer_embedding", "altup", "correction")


@dataclass(frozen=True)
class Matrix:
    """`num` equal linear layers. `module`: their name in the checkpoint, within the layer."""

    module: str
    num: int
    num_inputs: int
    num_outputs: int


@dataclass(frozen=True)
class WeightPart:
    """Tensors of one layer, or of none, that are stored and shared out alike.

    `num_bytes`: as shipped, packed weights, scales and zero points included. `layer`: 0-based; None
    for what is before the first layer (INPUT_PARTS) or behind the last (all others). `matrices`:
    those of the tensors that quantisation can pack.
    """

    name: str
    num_params: int
    num_bytes: int
    split: Split
    layer: int | None
    matrices: tuple[Matrix, ...] = ()


@dataclass(frozen=True)
class ModelSpec:
    """Shape of one model. Sizes in elements; bytes say so.

    `layers`: what each layer keeps of a request, in order. `ffn_size` is per expert,
    `num_active_experts` counts shared experts, 1 if dense. `num_kv_heads` is 1 where all heads share
    one latent vector. `max_model_len`: tokens that the positions reach. `num_active_params`: all but
    those of experts that a token does not choose. `precision`: format of quantised weights, empty
    where all have 16 bits.
    """

    name: str
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    max_model_len: int
    num_active_params: int
    layers: tuple[LayerMemory, ...]
    weights: tuple[WeightPart, ...]
    source: str
    num_active_experts: int = 1
    aliases: tuple[str, ...] = ()
    note: str = ""
    precision: str = ""
    # What the files ask the KV cache to be stored in, "fp8"; empty: nothing.
    shipped_kv_cache_dtype: str = ""

    def __post_init__(self) -> None:
        assert 0 < self.num_active_params <= self.num_params, (
            self.name,
            self.num_active_params,
            self.num_params,
        )
        for part in self.weights:
            assert part.layer is None or part.layer < self.num_layers, (self.name, part)

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @cached_property
    def num_params(self) -> int:
        """Parameters of all tensors, tied ones once."""
        return sum(part.num_params for part in self.weights)

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of all tensors as shipped, tied ones once."""
        return sum(part.num_bytes for part in self.weights)

    @cached_property
    def attention_layers(self) -> tuple[AttentionKv, ...]:
        """The layers that keep K and V, in order."""
        return tuple(layer for layer in self.layers if isinstance(layer, AttentionKv))

    @property
    def mla_latent_dim(self) -> int:
        """Elements of the latent vector of multi-head latent attention, a token and layer; else 0."""
        return max(
            (layer.key_dim for layer in self.attention_layers if layer.replicated), default=0
        )

    @property
    def sliding_window(self) -> int:
        """Tokens of the longest window of any layer; 0 if there is none."""
        return max((layer.window for layer in self.attention_layers), default=0)

    @property
    def num_window_layers(self) -> int:
        return sum(layer.window > 0 for layer in self.attention_layers)

    @property
    def window_note(self) -> str:
        """Which layers have a sliding window; empty where none has."""
        if not self.sliding_window:
            return ""
        return (
            f"{self.num_window_layers} of the {self.num_layers} layers of {self.name} attend to "
            f"the last {self.sliding_window:,} tokens only"
        )

    def check_tensor_parallel(self, tensor_parallel_size: int) -> None:
        """Raise UserError unless the heads divide over the ranks (vLLM's rule).

        KV heads may be fewer than ranks: each is then held by equally many.
        """
        if self.num_heads % tensor_parallel_size:
            raise UserError(
                f"--tensor-parallel-size is {tensor_parallel_size}; it must divide the "
                f"{self.num_heads} attention heads of {self.name}"
            )
        many, few = (
            max(self.num_kv_heads, tensor_parallel_size),
            min(self.num_kv_heads, tensor_parallel_size),
        )
        if not self.mla_latent_dim and many % few:
            raise UserError(
                f"--tensor-parallel-size is {tensor_parallel_size}; it must divide or be a "
                f"multiple of the {self.num_kv_heads} KV heads of {self.name}"
            )

    def check_max_model_len(self, max_model_len: int) -> None:
        """Raise UserError where the positions do not reach so far."""
        if max_model_len > self.max_model_len:
            raise UserError(
                f"--max-model-len is {max_model_len:,}; {self.name} has positions for at most "
                f"{self.max_model_len:,} tokens; lower it to that{_said_of_rope(self.note)}"
            )

    def kv_bytes_per_token(self, kv_cache_dtype: str, tensor_parallel_size: int) -> int:
        """KV bytes of one token over all layers on one rank.

        (K + V elements) x KV heads on the rank x bytes an element, summed over the layers; a rank
        holds at least one KV head, and all of a latent vector (DeepSeek-V2 report, Table 1). Layers
        with a sliding window count in full.
        """
        elements = sum(
            layer.elements_per_token(tensor_parallel_size) for layer in self.attention_layers
        )
        return elements * KV_DTYPE_BYTES[kv_cache_dtype]

    def state_bytes_per_request(self, tensor_parallel_size: int) -> int:
        """Bytes of recurrent state that one request keeps on one rank, however long it is."""
        states = [layer.num_bytes for layer in self.layers if isinstance(layer, RecurrentState)]
        return sum(math.ceil(num_bytes / tensor_parallel_size) for num_bytes in states)

    def weight_bytes_per_rank(self, tensor_parallel_size: int, layers: range | None = None) -> int:
        """Weight bytes on one rank of the pipeline stage that has `layers` (half-open; None: all).

        The embedding is on the first layer's stage, final norm and output head on the last's. A
        head tied to the embedding has no tensor of its own, so the last stage holds a copy of the
        embedding (as in vLLM, unless one stage has both).
        """
        stage = range(self.num_layers) if layers is None else layers
        assert 0 <= stage.start < stage.stop <= self.num_layers, (stage, self.num_layers)
        first, last = stage.start == 0, stage.stop == self.num_layers
        return sum(
            self._bytes_on_rank(part, tensor_parallel_size)
            for part in self.weights
            if (part.layer in stage if part.layer is not None else self._is_at(part, first, last))
        )

    @cached_property
    def tied_embeddings(self) -> bool:
        """Whether the output head reads the embedding instead of a tensor of its own."""
        return not any(part.name == "output" for part in self.weights)

    def _is_at(self, part: WeightPart, first: bool, last: bool) -> bool:
        if part.name in INPUT_PARTS:
            return first or (last and self.tied_embeddings and part.name == "embedding")
        return last

    def _bytes_on_rank(self, part: WeightPart, ranks: int) -> int:
        if part.split == "none":
            return part.num_bytes
        if part.split == "kv_heads":
            ranks = min(ranks, self.num_kv_heads)
        return math.ceil(part.num_bytes / ranks)


def kv_dtype(name: str) -> str:
    """The key of KV_DTYPE_BYTES that a name of vLLM's stands for."""
    return "fp8" if name in FP8_FORMATS else name


def _said_of_rope(note: str) -> str:
    """What a model's note says of scaling positions, in brackets; empty if nothing."""
    sentences = re.split(r"[;.] |\.$", note)
    said = [sentence for sentence in sentences if re.search("rope|yarn", sentence, re.IGNORECASE)]
    return f" ({'; '.join(said)})" if said else ""
