"""A model's shape and weights from its config.json."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvtwin.traces import UserError

from ..layers import LayerMemory, RecurrentState
from ..model import Matrix, ModelSpec, WeightPart
from . import per_layer_inputs
from .attention import Heads, attention_tensors, is_on, read_heads
from .families import FAMILIES, LIKE_LLAMA, REFUSED
from .family import Family
from .feed_forward import Experts, dense_tensors, expert_tensors, read_experts
from .fields import Fields, read_json
from .kv_cache import shipped_kv_cache_dtype
from .plan import LayerPlan, plan_layers
from .positions import positions_note, read_max_model_len
from .recurrent import read_recurrent
from .safetensors import checkpoint_bytes
from .shipped import ship
from .tensors import Tensors, gather

_MAX_LAYERS = 10_000
# Fields of models whose layers differ in ways that only their own code says.
_FOREIGN = ("block_configs", "hybrid_override_pattern", "compress_ratios", "moe_latent_size")


def read_model(path: str | Path) -> ModelSpec:
    """The model of a Hugging Face config.json, or of a folder that has one.

    Weights are counted from shapes, and, where the checkpoint's index or its safetensors files lie
    beside the file, corrected by one part to what these say. Raises UserError naming file and field.
    """
    given = Path(path)
    file = given / "config.json" if given.is_dir() else given
    folder = file.parent
    values = read_json(file)
    beside = folder / "hf_quant_config.json"
    if "quantization_config" not in values and beside.is_file():
        values["quantization_config"] = read_json(beside)
    stem = folder.resolve().name if file.name == "config.json" else file.stem
    model = model_from_config(values, name=stem or "model", source=str(file), where=str(file))
    return _corrected(model, folder, Fields(values, str(file)))


def model_from_config(
    values: Mapping[str, Any],
    *,
    name: str,
    source: str,
    where: str,
    aliases: tuple[str, ...] = (),
    note: str = "",
) -> ModelSpec:
    """The model whose config.json holds `values`. `where` begins every complaint.

    Raises UserError for missing and impossible fields and for models that are not known here.
    """
    outer = Fields(values, where)
    fields = outer.table("text_config") or outer
    family, family_note = _family(outer, fields)
    fields = fields.of_class(family.defaults, family.overrides)
    heads = read_heads(fields)
    num_layers = fields.whole("num_hidden_layers", most=_MAX_LAYERS)
    experts = read_experts(fields, family, num_layers)
    plans = plan_layers(fields, family, num_layers, experts)
    layers, weights = _layers(fields, family, heads, experts, plans)
    tied = _is_tied(outer, fields, family)
    before, behind = _ends(fields, family, tied)
    all_weights = (*before, *weights, *behind)
    quantization = outer.table("quantization_config") or fields.table("quantization_config")
    precision = kv_cache_dtype = kv_cache_note = ""
    if quantization is not None and quantization.values:
        all_weights, precision = ship(all_weights, quantization)
        latent = bool(heads.latent_dim)
        kv_cache_dtype, kv_cache_note = shipped_kv_cache_dtype(quantization, latent=latent)
    notes = [note, family_note, positions_note(fields), kv_cache_note, _tower_note(outer)]
    return ModelSpec(
        name=name,
        hidden_size=fields.whole("hidden_size"),
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        ffn_size=experts.width if experts else fields.whole(family.dense_ffn),
        vocab_size=fields.whole("vocab_size", most=2**26),
        max_model_len=read_max_model_len(fields),
        num_active_experts=experts.num_chosen + experts.num_shared if experts else 1,
        num_active_params=_active_params(all_weights, experts),
        layers=layers,
        weights=all_weights,
        source=source,
        aliases=aliases,
        note="; ".join(part for part in notes if part),
        precision=precision,
        shipped_kv_cache_dtype=kv_cache_dtype,
    )


def _family(outer: Fields, fields: Fields) -> tuple[Family, str]:
    """The family of a file, and what its reader must know."""
    model_type = fields.text("model_type", outer.text("model_type"))
    if reason := REFUSED.get(model_type, REFUSED.get(outer.text("model_type"))):
        raise UserError(f"{outer.where}: model_type {model_type} is not known here: {reason}")
    if outer.flag("is_encoder_decoder"):
        raise UserError(
            f"{outer.where}: is an encoder-decoder (is_encoder_decoder is true); only decoders are known here"
        )
    if fields.get("num_key_value_heads") is None and fields.has("block_configs"):
        raise UserError(f"{outer.where}: block_configs: layers that differ so are not known here")
    family = FAMILIES.get(model_type)
    if family is not None:
        return (family(fields) if callable(family) else family), ""
    for name in (
        *_FOREIGN,
        *(name for name in fields.values if name.startswith(("mamba", "ssm", "linear_"))),
    ):
        if fields.has(name):
            raise UserError(
                f"{outer.where}: {name}: model_type {model_type[:40] or '(none)'} is not known here, and this "
                "field says that its layers are not like Llama's"
            )
    called = f"model_type {model_type[:40]}" if model_type else "a file without model_type"
    return LIKE_LLAMA, f"{called} is not known here: read as if it were Llama's"


def _is_tied(outer: Fields, fields: Fields, family: Family) -> bool:
    return fields.flag("tie_word_embeddings", outer.flag("tie_word_embeddings", family.tied))


def _layers(
    fields: Fields,
    family: Family,
    heads: Heads,
    experts: Experts | None,
    plans: tuple[LayerPlan, ...],
) -> tuple[tuple[LayerMemory, ...], list[WeightPart]]:
    """Memory and weights of every layer; those of layers alike are counted once."""
    made: dict[tuple[bool, bool, str], tuple[RecurrentState | None, tuple[WeightPart, ...]]] = {}
    layers: list[LayerMemory] = []
    weights: list[WeightPart] = []
    for i, plan in enumerate(plans):
        kind = (plan.attends, plan.is_recurrent, plan.ffn)
        if kind not in made:
            made[kind] = _one_layer(fields, family, heads, experts, plan)
        state, parts = made[kind]
        weights += [dataclasses.replace(part, layer=i) for part in parts]
        if plan.is_recurrent:
            layers.append(state)
        else:
            memory = heads.memory(plan.window, chunked=plan.chunked)
            layers.append(memory if plan.keeps_kv else None)
    return tuple(layers), weights


def _one_layer(
    fields: Fields, family: Family, heads: Heads, experts: Experts | None, plan: LayerPlan
) -> tuple[RecurrentState | None, tuple[WeightPart, ...]]:
    tensors: list[Tensors] = []
    state = None
    if plan.is_recurrent:
        state, tensors = read_recurrent(fields, family)
    elif plan.attends:
        tensors = attention_tensors(fields, family, heads)
    if plan.ffn == "experts":
        assert experts is not None
        tensors += expert_tensors(fields, family, experts)
    elif plan.ffn == "dense":
        tensors += dense_tensors(fields, family, fields.whole(family.dense_ffn))
    if family.per_layer_inputs:
        tensors += per_layer_inputs.layer_tensors(fields)
    return state, gather([*tensors, *_norms(fields, family, family.norms)], None)


def _norms(fields: Fields, family: Family, count: int) -> list[Tensors]:
    each = int(family.norm_weight) + int(family.norm_bias)
    return [Tensors("norms", "none", count * each * fields.whole("hidden_size"))]


def _ends(
    fields: Fields, family: Family, tied: bool
) -> tuple[tuple[WeightPart, ...], tuple[WeightPart, ...]]:
    """What is before the first layer and behind the last."""
    hidden_size, vocab_size = fields.whole("hidden_size"), fields.whole("vocab_size", most=2**26)
    before = [Tensors("embedding", "even", vocab_size * hidden_size)]
    if family.position_rows is not None:
        rows = (
            fields.whole("max_position_embeddings", fields.get("n_positions"))
            + family.position_rows
        )
        before.append(Tensors("positions", "none", rows * hidden_size))
    if family.embedding_norm:
        before.append(Tensors("embedding_norm", "none", 2 * hidden_size))
    if family.per_layer_inputs:
        before += per_layer_inputs.input_tensors(fields)
    behind = _norms(fields, family, 1)
    if not tied:
        matrix = Matrix("lm_head", 1, hidden_size, vocab_size)
        behind.append(Tensors("output", "even", vocab_size * hidden_size, matrix))
    if is_on(fields, family.head_bias):
        behind.append(Tensors("output_bias", "even", vocab_size))
    return gather(before, None), gather(behind, None)


def _active_params(weights: tuple[WeightPart, ...], experts: Experts | None) -> int:
    """Parameters of a token's way: all but those of the experts that it does not choose."""
    routed = sum(part.num_params for part in weights if part.name == "experts")
    unused = (
        routed * (experts.num_experts - experts.num_chosen) // experts.num_experts if experts else 0
    )
    return sum(part.num_params for part in weights) - unused


def _tower_note(outer: Fields) -> str:
    towers = [name for name in ("vision_config", "audio_config") if outer.has(name)]
    return f"weights of {' and '.join(towers)} not counted" if towers else ""


def _corrected(model: ModelSpec, folder: Path, fields: Fields) -> ModelSpec:
    """`model` with one part more, that makes its bytes those of the files in `folder`."""
    text = fields.table("text_config") or fields
    in_float32 = (
        not model.precision and text.text("dtype", fields.text("dtype", "float32")) == "float32"
    )
    found = checkpoint_bytes(
        folder, model.num_layers, tied=model.tied_embeddings, in_float32=in_float32
    )
    if found is None:
        return model
    difference = found.num_bytes - model.weight_bytes
    said = f"weights by {found.source}: {difference:+,} bytes on what the shapes give"
    weights = model.weights
    if difference:
        weights = (*weights, WeightPart("correction", 0, difference, "even", None))
    note = "; ".join(part for part in (model.note, said) if part)
    return dataclasses.replace(model, weights=weights, note=note)
