"""What vLLM 0.32 keeps of each layer: kind, block size and bytes of a page (one block of one layer)."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from kvtwin.traces import UserError

from ...layers import AttentionKv, RecurrentState
from ..deployment import Deployment

DEFAULT_BLOCK_SIZE = 16  # `config/cache.py`: CacheConfig.DEFAULT_BLOCK_SIZE
# Most attention backends take multiples of 16 tokens; hybrids with a latent cache are aligned to
# 128 (`platforms/interface.py`: _align_hybrid_block_size).
BLOCK_ALIGNMENT = 16
LATENT_BLOCK_ALIGNMENT = 128

Kind = Literal["full", "latent", "window", "latent window", "chunk", "state"]


@dataclass(frozen=True)
class LayerSpec:
    """One layer on one rank. Equal specs can share a block table.

    `page_bytes` may exceed block_size x bytes_per_token: the rest is padding. `block_size` of a
    state is how often it would be stored, which nothing here depends on.
    """

    kind: Kind
    block_size: int
    page_bytes: int
    num_kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    window: int = 0

    @property
    def keeps_all_tokens(self) -> bool:
        return self.kind in ("full", "latent")

    def stored_in_full(self, block_size: int, page_bytes: int) -> "LayerSpec":
        """The same layer, its KV kept behind the window, too; `window` goes on to be remembered."""
        kind: Kind = "latent" if self.kind == "latent window" else "full"
        return replace(self, kind=kind, block_size=block_size, page_bytes=page_bytes)


def layer_specs(deployment: Deployment) -> dict[int, LayerSpec]:
    """The specs of the layers that keep anything, by index in the whole model.

    `model_executor/layers/attention/attention.py`, `mla_attention.py`, `mamba/abstract.py`:
    get_kv_cache_spec.
    """
    block_size = attention_block_size(deployment)
    specs: dict[int, LayerSpec] = {}
    for index, layer in enumerate(deployment.model.layers):
        if isinstance(layer, AttentionKv):
            specs[index] = _attention_spec(layer, deployment, block_size)
        elif isinstance(layer, RecurrentState):
            page_bytes = _state_page_bytes(deployment, block_size)
            specs[index] = LayerSpec("state", block_size, page_bytes)
    if not specs:
        raise UserError(f"{deployment.model.name} keeps no KV: there is no pool to size")
    return specs


def attention_block_size(deployment: Deployment) -> int:
    """Tokens in a block of attention.

    As given, or 16. Where the model has recurrent states, too, raised until a page holds a state:
    the alignment x ceil(state / (alignment x bytes a token)) (`_align_hybrid_block_size`). That
    some backends, for latent caches on Blackwell for one, ask for 32 to 128 is not modelled.
    """
    block_size = deployment.block_size or DEFAULT_BLOCK_SIZE
    state_bytes, token_bytes = _largest_state(deployment), _attention_bytes_per_token(deployment)
    if not state_bytes or not token_bytes:
        return block_size
    alignment = max(BLOCK_ALIGNMENT, block_size)
    if deployment.model.mla_latent_dim:
        alignment = max(alignment, LATENT_BLOCK_ALIGNMENT)
    aligned = alignment * math.ceil(state_bytes / (alignment * token_bytes))
    aligned = BLOCK_ALIGNMENT * math.ceil(aligned / BLOCK_ALIGNMENT)
    return max(block_size, aligned)


def state_padding(deployment: Deployment) -> float:
    """Percent by which a state's page is padded to a page of attention; 0 if there is no need."""
    state_bytes, token_bytes = _largest_state(deployment), _attention_bytes_per_token(deployment)
    if not state_bytes or not token_bytes:
        return 0.0
    page_bytes = attention_block_size(deployment) * token_bytes
    return 100 * (page_bytes - state_bytes) / state_bytes


def _attention_spec(layer: AttentionKv, deployment: Deployment, block_size: int) -> LayerSpec:
    ranks = deployment.tensor_parallel_size
    elements = layer.elements_per_token(ranks)
    kind: Kind = "window" if layer.window else "full"
    if layer.chunked:
        kind = "chunk"
    if layer.replicated:
        kind = "latent window" if layer.window else "latent"
    return LayerSpec(
        kind=kind,
        block_size=block_size,
        page_bytes=block_size * elements * deployment.kv_element_bytes,
        num_kv_heads=elements // (layer.key_dim + layer.value_dim),
        key_dim=layer.key_dim,
        value_dim=layer.value_dim,
        window=layer.window,
    )


def _state_page_bytes(deployment: Deployment, block_size: int) -> int:
    """A state, padded to a page of attention where the model has attention."""
    token_bytes = _attention_bytes_per_token(deployment)
    return block_size * token_bytes if token_bytes else _largest_state(deployment)


def _largest_state(deployment: Deployment) -> int:
    sizes = [
        layer.num_bytes for layer in deployment.model.layers if isinstance(layer, RecurrentState)
    ]
    return math.ceil(max(sizes, default=0) / deployment.tensor_parallel_size)


def _attention_bytes_per_token(deployment: Deployment) -> int:
    """Bytes of one token in one attention layer on one rank, of the first one: vLLM knows one."""
    for layer in deployment.model.attention_layers:
        elements = layer.elements_per_token(deployment.tensor_parallel_size)
        return elements * deployment.kv_element_bytes
    return 0
