"""Families whose facts depend on the fields of the file."""

import dataclasses
from collections.abc import Callable

from .family import Family
from .fields import Fields

BIASED = Family(
    tied=True, gated=False, qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True
)
GEMMA = Family(
    tied=True, qkv_bias="attention_bias", output_bias="attention_bias", defaults={"head_dim": 256}
)


def four_times_hidden(family: Family) -> Callable[[Fields], Family]:
    """GPT-2 and its like make the feed-forward 4 x hidden_size where the file does not say."""

    def read(fields: Fields) -> Family:
        width = 4 * fields.whole("hidden_size")
        return dataclasses.replace(family, defaults={**family.defaults, "intermediate_size": width})

    return read


def gpt_bigcode(fields: Fields) -> Family:
    family = four_times_hidden(dataclasses.replace(BIASED, position_rows=0))(fields)
    heads = 1 if fields.flag("multi_query", True) else fields.whole("num_attention_heads")
    return dataclasses.replace(family, defaults={**family.defaults, "num_key_value_heads": heads})


def falcon(fields: Fields) -> Family:
    """Multi-query with one norm (7B), or grouped-query with two (40B)."""
    new = fields.flag("new_decoder_architecture")
    heads = fields.whole("num_attention_heads")
    if not new:
        heads = 1 if fields.flag("multi_query", True) else heads
    else:
        heads = fields.whole("num_key_value_heads", heads)
    norms = fields.whole("num_ln_in_parallel_attn", 2 if new else 1)
    if not (new or fields.flag("parallel_attn", True)):
        norms = 2
    defaults = {
        "intermediate_size": 4 * fields.whole("hidden_size"),
        "max_position_embeddings": 2048,
    }
    return Family(
        tied=True,
        gated=False,
        qkv_bias="bias",
        output_bias="bias",
        mlp_bias="bias",
        norms=norms,
        norm_bias=True,
        defaults=defaults,
        overrides={"num_key_value_heads": heads},  # the file of the 7B says 71
    )


def mpt(fields: Fields) -> Family:
    width = fields.whole("expansion_ratio", 4, most=64) * fields.whole("hidden_size")
    attention = fields.table("attn_config") or Fields({}, fields.where)
    heads = attention.whole("kv_n_heads", fields.whole("num_attention_heads"))
    if not fields.flag("no_bias", True):
        fields.refuse("no_bias", "must be true: MPT models with biases are not known here")
    return Family(
        tied=True,
        gated=False,
        defaults={"intermediate_size": width, "num_key_value_heads": heads},
    )


def gemma3n(fields: Fields) -> Family:
    """Feed-forwards may have a width for each layer in the file; the checkpoints' are all alike."""
    widths = fields.get("intermediate_size", 16_384)
    if isinstance(widths, list):
        if not widths or widths != [widths[0]] * len(widths):
            fields.refuse("intermediate_size", "must be one width for all layers")
        widths = widths[0]
    defaults = {
        "head_dim": 256,
        "sliding_window": 512,
        "num_kv_shared_layers": 15,
        "vocab_size": 262_400,
        "vocab_size_per_layer_input": 262_144,
        "hidden_size_per_layer_input": 256,
        "laurel_rank": 64,
        "altup_num_inputs": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
    }
    return dataclasses.replace(
        GEMMA,
        norms=7,  # four as in Gemma 3, and behind LAuReL, before AltUp's router, of the layer's input
        qk_norm="head",
        window_period=5,
        per_layer_inputs=True,
        defaults=defaults,
        overrides={"intermediate_size": widths},
    )


def stablelm(fields: Fields) -> Family:
    norms = 1 if fields.flag("use_parallel_residual") else 2
    return Family(
        qkv_bias="use_qkv_bias",
        norms=norms,
        norm_bias=True,
        qk_norm="whole",
        qk_norm_if="qk_layernorm",
    )


def dbrx(fields: Fields) -> Family:
    attention, ffn = fields.table("attn_config"), fields.table("ffn_config")
    if attention is None or ffn is None:
        fields.missing("attn_config" if attention is None else "ffn_config")
    defaults = {
        "num_key_value_heads": attention.whole("kv_n_heads"),
        "num_experts": ffn.whole("moe_num_experts"),
        "num_experts_per_tok": ffn.whole("moe_top_k"),
        "moe_intermediate_size": ffn.whole("ffn_hidden_size"),
        "intermediate_size": ffn.whole("ffn_hidden_size"),
    }
    return Family(defaults=defaults)
