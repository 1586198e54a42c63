"""What the class of a model fills in where its config.json is silent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

Bias = bool | str  # a string names the field that says it


@dataclass(frozen=True)
class Family:
    """`tied`: head and embedding are one tensor where the file does not say.

    `norms`: vectors of hidden_size a layer, with a bias if `norm_bias`. `qk_norm`: a norm of Q and
    of K, over one head or over all of them, where the field `qk_norm_if` (if named) is true.
    `query_gate`: Q comes with a gate as wide. `sinks`: an element a head. `per_layer_inputs`: as in
    Gemma 3n. `position_rows`: rows of learned positions beyond max_position_embeddings. `window_period`:
    every so-many-th layer attends in full, the others through a window, or, if `recurrent`, not at
    all. `full_interval`: the same with chunks. `dense_ffn`, `expert_ffn`, `shared_ffn`: fields of
    the widths of a dense feed-forward, of an expert and of all shared experts (if not
    num_shared_experts says it); `shared_gate`: one vector decides on the shared ones.
    `defaults` stand in for absent fields, `overrides` go before the file's.
    """

    tied: bool = False
    gated: bool = True
    qkv_bias: Bias = False
    output_bias: Bias = False
    mlp_bias: Bias = False
    head_bias: Bias = False
    norms: int = 2
    norm_bias: bool = False
    norm_weight: bool = True
    qk_norm: Literal["none", "head", "whole"] = "none"
    qk_norm_if: str = ""
    query_gate: bool = False
    sinks: bool = False
    position_rows: int | None = None
    embedding_norm: bool = False
    per_layer_inputs: bool = False
    window_period: int = 0
    window_is_optional: bool = False
    full_interval: int = 0
    recurrent: Literal["", "mamba", "mamba2", "delta"] = ""
    dense_ffn: str = "intermediate_size"
    expert_ffn: str = "moe_intermediate_size"
    shared_ffn: str = ""
    shared_gate: bool = False
    expert_bias: bool = False
    router_bias: bool = False
    router_correction: bool = False
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    overrides: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
