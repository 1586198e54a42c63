"""Models and GPUs of any shape, to be sized."""

from dataclasses import replace
from typing import Any

from kvtwin.sim import GpuSpec, ModelSpec, WeightPart, find_gpu
from kvtwin.sim.layers import AttentionKv, LayerMemory, RecurrentState
from kvtwin.sim.sizing.deployment import Deployment

GIB = 2**30


def made_model(*layers: LayerMemory, name: str = "made", num_heads: int = 8) -> ModelSpec:
    """A model whose KV is of interest only: one weight of one byte."""
    heads = max(
        (layer.num_kv_heads for layer in layers if isinstance(layer, AttentionKv)), default=1
    )
    return ModelSpec(
        name=name,
        hidden_size=64,
        num_heads=max(heads, num_heads),
        num_kv_heads=heads,
        head_dim=8,
        ffn_size=64,
        vocab_size=64,
        max_model_len=2**20,
        num_active_params=1,
        layers=layers,
        weights=(WeightPart("mlp", 1, 1, "none", 0),),
        source="made for a test",
    )


def attention(
    num_kv_heads: int = 8, head_dim: int = 128, window: int = 0, *, latent: bool = False
) -> AttentionKv:
    """A layer with K and V of `head_dim` each; a latent vector of it if `latent`."""
    if latent:
        return AttentionKv(1, head_dim, 0, window, replicated=True)
    return AttentionKv(num_kv_heads, head_dim, head_dim, window)


def state(num_bytes: int) -> RecurrentState:
    return RecurrentState(num_bytes)


def made_gpu(cuda_memory_bytes: int, *, driver_bytes: int = 0) -> GpuSpec:
    """An H100 with another amount of memory, of which the driver keeps `driver_bytes`."""
    return replace(
        find_gpu("h100"),
        memory_bytes=cuda_memory_bytes + driver_bytes,
        cuda_memory_bytes=cuda_memory_bytes,
    )


def deployment(model: ModelSpec, **fields: Any) -> Deployment:
    """The model on an H100, requests of 4,096 tokens."""
    return Deployment(**({"model": model, "gpu": find_gpu("h100"), "max_model_len": 4096} | fields))
