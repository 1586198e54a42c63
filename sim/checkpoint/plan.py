"""Which layer of a model is what."""

from dataclasses import dataclass
from typing import Literal

from .family import Family
from .feed_forward import Experts
from .fields import Fields
from .windows import layer_kinds, windows


@dataclass(frozen=True)
class LayerPlan:
    """One layer. `keeps_kv` is false for attention that reads another layer's K and V.

    `chunked`: the window is a chunk, see AttentionKv.
    """

    attends: bool
    is_recurrent: bool
    keeps_kv: bool
    window: int
    ffn: Literal["dense", "experts", "none"]
    chunked: bool = False


def plan_layers(
    fields: Fields, family: Family, num_layers: int, experts: Experts | None
) -> tuple[LayerPlan, ...]:
    """The plan of every layer, in order. Raises UserError for fields that do not fit together."""
    if fields.has("hybrid_override_pattern"):
        return _from_pattern(fields, num_layers)
    kinds = _recurrent_kinds(fields, family, num_layers) or layer_kinds(fields, family, num_layers)
    if "recurrent" in kinds and not family.recurrent:
        fields.refuse(
            "layer_types", "must hold attention only: this model's state is not known here"
        )
    lengths = windows(fields, family, kinds)
    shared = fields.whole("num_kv_shared_layers", 0, least=0, most=num_layers - 1)
    return tuple(
        LayerPlan(
            attends=kind != "recurrent",
            is_recurrent=kind == "recurrent",
            keeps_kv=kind != "recurrent" and i < num_layers - shared,
            window=lengths[i],
            ffn="dense" if experts is None or i in experts.dense_layers else "experts",
            chunked=kind == "chunk" and lengths[i] > 0,
        )
        for i, kind in enumerate(kinds)
    )


def _recurrent_kinds(fields: Fields, family: Family, num_layers: int) -> tuple[str, ...]:
    """Kinds of the layers where a hybrid's own fields say them, else nothing."""
    if not family.recurrent:
        return ()
    if fields.has("attn_layer_indices"):
        attending = set(map(str, fields.array("attn_layer_indices")))
        return tuple("full" if str(i) in attending else "recurrent" for i in range(num_layers))
    if fields.has("attn_layer_period"):
        period = fields.whole("attn_layer_period")
        offset = fields.whole("attn_layer_offset", 0, least=0)
        return tuple("full" if i % period == offset else "recurrent" for i in range(num_layers))
    if not fields.has("layer_types") and not family.window_period:
        fields.missing("layer_types")
    return ()


def _from_pattern(fields: Fields, num_layers: int) -> tuple[LayerPlan, ...]:
    """Nemotron-H: `M` is Mamba-2, `*` attention, `-` a feed-forward, `E` experts."""
    pattern = fields.text("hybrid_override_pattern")
    if len(pattern) != num_layers or set(pattern) - set("M*-E"):
        fields.refuse(
            "hybrid_override_pattern", f"must be {num_layers} characters of M, *, - and E"
        )
    ffns: dict[str, Literal["dense", "experts", "none"]] = {"-": "dense", "E": "experts"}
    return tuple(
        LayerPlan(sign == "*", sign == "M", sign == "*", 0, ffns.get(sign, "none"))
        for sign in pattern
    )
