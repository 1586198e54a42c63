"""Attention: the tensors of one layer, and what the layer keeps of a token."""

from dataclasses import dataclass

from ..layers import AttentionKv
from ..model import Matrix
from .family import Bias, Family
from .fields import Fields
from .tensors import Tensors, columns, rows


@dataclass(frozen=True)
class Heads:
    """Heads of every attention layer. `latent_dim`: 0 unless they share a latent vector."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    latent_dim: int = 0

    def memory(self, window: int, *, chunked: bool) -> AttentionKv:
        if self.latent_dim:
            return AttentionKv(1, self.latent_dim, 0, window, replicated=True, chunked=chunked)
        width = self.head_dim
        return AttentionKv(self.num_kv_heads, width, width, window, chunked=chunked)


def read_heads(fields: Fields) -> Heads:
    """Heads and their width, which is hidden_size over heads where the file does not say."""
    num_heads = fields.whole("num_attention_heads", most=2**16)
    if fields.has("kv_lora_rank"):
        latent_dim = fields.whole("kv_lora_rank") + fields.whole("qk_rope_head_dim")
        return Heads(num_heads, 1, fields.whole("v_head_dim"), latent_dim)
    num_kv_heads = fields.whole("num_key_value_heads", num_heads, most=2**16)
    if num_heads % num_kv_heads:
        fields.refuse("num_key_value_heads", f"must divide the {num_heads} attention heads")
    hidden_size = fields.whole("hidden_size")
    if fields.has("head_dim"):
        return Heads(num_heads, num_kv_heads, fields.whole("head_dim"))
    if hidden_size % num_heads:
        fields.refuse(
            "hidden_size", f"must be a multiple of the {num_heads} heads where head_dim is absent"
        )
    return Heads(num_heads, num_kv_heads, hidden_size // num_heads)


def attention_tensors(fields: Fields, family: Family, heads: Heads) -> list[Tensors]:
    """Q, K, V and output projections of one layer, with their biases, norms and sinks."""
    if heads.latent_dim:
        return _latent_tensors(fields, family, heads)
    hidden_size = fields.whole("hidden_size")
    bias = is_on(fields, family.qkv_bias)
    queries, kept = heads.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
    projected = 2 * queries if family.query_gate else queries
    tensors = [columns("attention", "self_attn.q_proj", hidden_size, projected, bias=bias)]
    for name in ("k_proj", "v_proj"):
        tensors.append(
            columns(
                "kv_projection", f"self_attn.{name}", hidden_size, kept, bias=bias, split="kv_heads"
            )
        )
    tensors += rows(
        "attention",
        "self_attn.o_proj",
        queries,
        hidden_size,
        bias=is_on(fields, family.output_bias),
    )
    if family.qk_norm != "none" and (not family.qk_norm_if or fields.flag(family.qk_norm_if)):
        per_head = family.qk_norm == "head"
        num_params = 2 * heads.head_dim if per_head else queries + kept
        tensors.append(Tensors("norms", "none", num_params))
    if family.sinks:
        tensors.append(Tensors("attention", "even", heads.num_heads))
    return tensors


def _latent_tensors(fields: Fields, family: Family, heads: Heads) -> list[Tensors]:
    """Multi-head latent attention: what leads into the latent vectors is on every rank."""
    hidden_size, rank = fields.whole("hidden_size"), fields.whole("kv_lora_rank")
    rope, value = fields.whole("qk_rope_head_dim"), fields.whole("v_head_dim")
    nope = fields.whole("qk_nope_head_dim")
    queries = heads.num_heads * (nope + rope)
    bias = is_on(fields, family.qkv_bias)
    tensors = []
    if fields.has("q_lora_rank"):
        q_rank = fields.whole("q_lora_rank")
        tensors += [
            _replicated("self_attn.q_a_proj", hidden_size, q_rank, bias),
            Tensors("norms", "none", q_rank),
            columns("attention", "self_attn.q_b_proj", q_rank, queries),
        ]
    else:
        tensors.append(columns("attention", "self_attn.q_proj", hidden_size, queries))
    latent = _replicated("self_attn.kv_a_proj_with_mqa", hidden_size, rank + rope, bias)
    unpacked = heads.num_heads * (nope + value)
    return [
        *tensors,
        latent,
        Tensors("norms", "none", rank),
        columns("attention", "self_attn.kv_b_proj", rank, unpacked),
        *rows(
            "attention",
            "self_attn.o_proj",
            heads.num_heads * value,
            hidden_size,
            bias=is_on(fields, family.output_bias),
        ),
    ]


def _replicated(module: str, inputs: int, outputs: int, bias: bool) -> Tensors:
    params = inputs * outputs + (outputs if bias else 0)
    return Tensors("latent_projection", "none", params, Matrix(module, 1, inputs, outputs))


def is_on(fields: Fields, bias: Bias) -> bool:
    """Whether a family's bias is there in this model."""
    return fields.flag(bias) if isinstance(bias, str) else bias
