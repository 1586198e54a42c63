"""Bytes that the layers of one pipeline stage keep on one rank, whatever the engine."""

import math

from ..layers import AttentionKv, RecurrentState
from .deployment import Deployment


def kept_by_window(deployment: Deployment, stage: int) -> dict[int, int]:
    """Bytes of one token in all attention layers with the same window, by window; 0: none."""
    kept: dict[int, int] = {}
    for layer in deployment.stage_layers(stage):
        if isinstance(layer, AttentionKv):
            elements = layer.elements_per_token(deployment.tensor_parallel_size)
            num_bytes = elements * deployment.kv_element_bytes
            kept[layer.window] = kept.get(layer.window, 0) + num_bytes
    return kept


def kv_bytes_per_token(deployment: Deployment, stage: int) -> int:
    """Bytes of one token in all attention layers, as if none had a window."""
    return sum(kept_by_window(deployment, stage).values())


def state_bytes_per_request(deployment: Deployment, stage: int) -> int:
    """Bytes of the recurrent states of one request."""
    return sum(
        math.ceil(layer.num_bytes / deployment.tensor_parallel_size)
        for layer in deployment.stage_layers(stage)
        if isinstance(layer, RecurrentState)
    )
