"""What a config.json leaves to its model's class: one entry for each `model_type`.

Facts of Hugging Face transformers 4.57 (configuration_*.py, modeling_*.py) and, for model types
that it lacks, of vLLM 0.32's model files.
"""

import dataclasses
from collections.abc import Callable

from .family import Family
from .family_rules import (
    BIASED,
    GEMMA,
    dbrx,
    falcon,
    four_times_hidden,
    gemma3n,
    gpt_bigcode,
    mpt,
    stablelm,
)
from .fields import Fields

LIKE_LLAMA = _LLAMA = Family(
    qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias"
)
_QWEN2 = Family(qkv_bias=True, window_is_optional=True)
_QWEN3 = Family(
    qkv_bias="attention_bias", output_bias="attention_bias", qk_norm="head", window_is_optional=True
)
_LATENT = Family(qkv_bias="attention_bias", output_bias="attention_bias")
_GRANITE_MOE = Family(
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    expert_ffn="intermediate_size",
    shared_ffn="shared_intermediate_size",
)

_MIXTRAL = dataclasses.replace(_LLAMA, expert_ffn="intermediate_size")
_GPT2 = four_times_hidden(dataclasses.replace(BIASED, position_rows=0))
_DEEPSEEK_V3 = dataclasses.replace(_LATENT, router_correction=True)
_QWEN2_MOE = dataclasses.replace(
    _QWEN2, shared_ffn="shared_expert_intermediate_size", shared_gate=True
)
_GEMMA3 = dataclasses.replace(
    GEMMA,
    norms=4,
    qk_norm="head",
    window_period=6,
    defaults={
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
)
_MAMBA_FLAGS = {"mamba_conv_bias": True, "mamba_proj_bias": False}
_MAMBA2_DEFAULTS = {**_MAMBA_FLAGS, "mamba_n_groups": 1}

FAMILIES: dict[str, Family | Callable[[Fields], Family]] = {
    "llama": _LLAMA,
    "mistral": dataclasses.replace(_LLAMA, defaults={"sliding_window": 4096}),
    "ministral": dataclasses.replace(_LLAMA, defaults={"sliding_window": 4096}),
    "mixtral": _MIXTRAL,
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_moe": _QWEN2_MOE,
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_vl_moe_text": _QWEN3,
    "qwen3_next": dataclasses.replace(
        _QWEN3,
        window_is_optional=False,
        window_period=4,
        recurrent="delta",
        query_gate=True,
        shared_ffn="shared_expert_intermediate_size",
        shared_gate=True,
        defaults={"head_dim": 256},
    ),
    "gemma": GEMMA,
    "gemma2": dataclasses.replace(
        GEMMA, norms=4, window_period=2, defaults={"head_dim": 256, "sliding_window": 4096}
    ),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gemma3n": gemma3n,
    "gemma3n_text": gemma3n,
    "phi": dataclasses.replace(BIASED, tied=False, norms=1, head_bias=True),
    "phi3": Family(),
    "phimoe": Family(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        head_bias="lm_head_bias",
        norm_bias=True,
        expert_ffn="intermediate_size",
    ),
    "opt": dataclasses.replace(BIASED, position_rows=2),
    "gpt2": _GPT2,
    "gpt_bigcode": gpt_bigcode,
    "gptj": four_times_hidden(
        Family(gated=False, mlp_bias=True, head_bias=True, norms=1, norm_bias=True)
    ),
    "gpt_neox": dataclasses.replace(
        BIASED,
        tied=False,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        defaults={"attention_bias": True},
    ),
    "bloom": four_times_hidden(
        dataclasses.replace(BIASED, embedding_norm=True, defaults={"max_position_embeddings": 2048})
    ),
    "falcon": falcon,
    "mpt": mpt,
    "stablelm": stablelm,
    "starcoder2": Family(
        tied=True,
        gated=False,
        qkv_bias="use_bias",
        output_bias="use_bias",
        mlp_bias="use_bias",
        norm_bias=True,
        defaults={"use_bias": True},
    ),
    "olmo": dataclasses.replace(_LLAMA, norm_weight=False),
    "olmo2": dataclasses.replace(_LLAMA, qk_norm="whole"),
    "olmo3": dataclasses.replace(
        _LLAMA, qk_norm="whole", window_period=4, defaults={"sliding_window": 4096}
    ),
    "olmoe": dataclasses.replace(_MIXTRAL, qk_norm="whole"),
    "cohere": dataclasses.replace(
        _LLAMA, tied=True, norms=1, qk_norm="whole", qk_norm_if="use_qk_norm"
    ),
    "cohere2": dataclasses.replace(
        _LLAMA, tied=True, norms=1, window_period=4, defaults={"sliding_window": 4096}
    ),
    "glm": dataclasses.replace(_LLAMA, output_bias=False, defaults={"attention_bias": True}),
    "glm4": dataclasses.replace(
        _LLAMA, output_bias=False, norms=4, defaults={"attention_bias": True}
    ),
    "glm4_moe": dataclasses.replace(
        _LLAMA, output_bias=False, qk_norm="head", qk_norm_if="use_qk_norm", router_correction=True
    ),
    "granite": _LLAMA,
    "granitemoe": _GRANITE_MOE,
    "granitemoeshared": _GRANITE_MOE,
    "granitemoehybrid": dataclasses.replace(
        _GRANITE_MOE,
        recurrent="mamba2",
        dense_ffn="shared_intermediate_size",
        defaults=_MAMBA2_DEFAULTS,
    ),
    "internlm2": dataclasses.replace(_LLAMA, qkv_bias="bias", output_bias="bias"),
    "baichuan": dataclasses.replace(_LLAMA, defaults={"max_position_embeddings": 4096}),
    "seed_oss": dataclasses.replace(
        _LLAMA, output_bias="attention_out_bias", defaults={"attention_bias": True}
    ),
    "smollm3": dataclasses.replace(_LLAMA, tied=True),
    "exaone4": Family(qk_norm="head"),
    "nemotron": dataclasses.replace(_LLAMA, gated=False, norm_bias=True),
    "ernie4_5": Family(tied=True, qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias"),
    "dbrx": dbrx,
    "deepseek_v2": _LATENT,
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "gpt_oss": Family(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        sinks=True,
        window_period=2,
        expert_ffn="intermediate_size",
        expert_bias=True,
        router_bias=True,
        defaults={"attention_bias": True},
    ),
    "llama4_text": Family(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        full_interval=4,
        dense_ffn="intermediate_size_mlp",
        expert_ffn="intermediate_size",
        shared_ffn="intermediate_size",
        defaults={"attention_chunk_size": 8192},
    ),
    "jamba": Family(recurrent="mamba", expert_ffn="intermediate_size", defaults=_MAMBA_FLAGS),
    "bamba": dataclasses.replace(_LLAMA, recurrent="mamba2", defaults=_MAMBA2_DEFAULTS),
    "nemotron_h": dataclasses.replace(
        _LLAMA,
        gated=False,
        norms=1,
        recurrent="mamba2",
        defaults={"mamba_conv_bias": True, "mamba_ssm_cache_dtype": "float32"},
    ),
}

# Model types whose memory follows other rules than those known here.
REFUSED = {
    "mllama": "its cross-attention layers keep KV of images",
    "zamba": "its attention blocks are shared between layers",
    "zamba2": "its attention blocks are shared between layers",
    "falcon_h1": "each of its layers has attention and a recurrent state",
    "falcon_mamba": "it has no attention",
    "mamba": "it has no attention",
    "mamba2": "it has no attention",
    "rwkv": "it has no attention",
    "qwen": "its file gives twice the width of its feed-forward",
    "chatglm": "its file has other fields",
    "deepseek_v32": "its sparse attention keeps an index beside the KV",
    "deepseek_v4": "its layers compress their KV",
}
