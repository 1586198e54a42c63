"""The feed-forward of one layer: dense, or experts behind a router."""

import math
from dataclasses import dataclass

from .attention import is_on
from .family import Family
from .fields import Fields
from .tensors import Tensors, columns, rows


@dataclass(frozen=True)
class Experts:
    """`num_shared`: shared experts, counted in widths of a routed one; `shared_width` in all."""

    num_experts: int
    num_chosen: int
    width: int
    shared_width: int
    dense_layers: frozenset[int]

    @property
    def num_shared(self) -> int:
        return math.ceil(self.shared_width / self.width)


def read_experts(fields: Fields, family: Family, num_layers: int) -> Experts | None:
    """The experts of a model; None if every layer is dense."""
    if not fields.has("num_experts") or fields.whole("num_experts", least=0, most=2**16) < 2:
        return None
    num_experts = fields.whole("num_experts", most=2**16)
    num_chosen = fields.whole("num_experts_per_tok", most=num_experts)
    width = fields.whole(family.expert_ffn)
    shared = fields.whole("num_shared_experts", 0, least=0, most=2**10) * width
    if family.shared_ffn:
        shared = fields.whole(family.shared_ffn, 0, least=0)
    return Experts(num_experts, num_chosen, width, shared, _dense_layers(fields, num_layers))


def _dense_layers(fields: Fields, num_layers: int) -> frozenset[int]:
    """Layers with a dense feed-forward in a model of experts, by each family's own fields."""
    first = fields.whole("first_k_dense_replace", 0, least=0)
    frequency = fields.get("moe_layer_freq", 1)
    if isinstance(frequency, list):
        if len(frequency) != num_layers:
            fields.refuse("moe_layer_freq", f"must have {num_layers} entries")
        return frozenset(i for i, sparse in enumerate(frequency) if not sparse)
    every = fields.whole("moe_layer_freq", 1)
    step = fields.whole("decoder_sparse_step", 1)
    interleaved = fields.whole("interleave_moe_layer_step", 1)
    period, offset = (
        fields.whole("expert_layer_period", 1),
        fields.whole("expert_layer_offset", 0, least=0),
    )
    listed = {i for i in fields.array("mlp_only_layers") if isinstance(i, int)}
    return frozenset(
        i
        for i in range(num_layers)
        if i < first
        or i % every
        or (i + 1) % step
        or (i + 1) % interleaved
        or i % period != offset % period
        or i in listed
    )


def dense_tensors(fields: Fields, family: Family, width: int) -> list[Tensors]:
    """One dense feed-forward of `width`."""
    return _mlp(
        "mlp",
        "mlp",
        fields.whole("hidden_size"),
        width,
        1,
        family.gated,
        is_on(fields, family.mlp_bias),
    )


def expert_tensors(fields: Fields, family: Family, experts: Experts) -> list[Tensors]:
    """Routed and shared experts of one layer, with their router."""
    hidden_size, num_experts = fields.whole("hidden_size"), experts.num_experts
    router = hidden_size * num_experts + (num_experts if family.router_bias else 0)
    tensors = [
        Tensors("router", "none", router),
        *_mlp(
            "experts",
            "mlp.experts",
            hidden_size,
            experts.width,
            num_experts,
            family.gated,
            family.expert_bias,
        ),
    ]
    if family.router_correction:
        tensors.append(Tensors("router", "none", num_experts, element_bytes=4))  # float32
    if experts.shared_width:
        tensors += _mlp(
            "shared_experts",
            "mlp.shared_experts",
            hidden_size,
            experts.shared_width,
            1,
            family.gated,
            is_on(fields, family.mlp_bias),
        )
        if family.shared_gate:
            tensors.append(Tensors("router", "none", hidden_size))
    return tensors


def _mlp(
    part: str, module: str, hidden_size: int, width: int, num: int, gated: bool, bias: bool
) -> list[Tensors]:
    names = ("gate_proj", "up_proj") if gated else ("up_proj",)
    return [
        *(
            columns(part, f"{module}.{name}", hidden_size, width, bias=bias, num=num)
            for name in names
        ),
        *rows(part, f"{module}.down_proj", width, hidden_size, bias=bias, num=num),
    ]
