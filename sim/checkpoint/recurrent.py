"""Recurrent layers: the tensors of one, and the state that it keeps of each request.

State shapes: vLLM 0.32 `mamba_utils.py`, without speculative tokens. The convolution's state has 16
bits an element; so has the recurrent one unless the file says otherwise.
"""

import math

from ..layers import RecurrentState
from .family import Family
from .fields import Fields
from .tensors import ELEMENT_BYTES, Tensors, columns, rows

_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": ELEMENT_BYTES}


def read_recurrent(fields: Fields, family: Family) -> tuple[RecurrentState, list[Tensors]]:
    """State and tensors of one recurrent layer. Raises UserError for a missing field."""
    assert family.recurrent, family
    return {"mamba": _mamba, "mamba2": _mamba2, "delta": _delta}[family.recurrent](fields)


def _state(fields: Fields, conv_elements: int, recurrent_elements: int) -> RecurrentState:
    dtype = fields.text("mamba_ssm_cache_dtype", "auto")
    if dtype not in _STATE_BYTES:
        fields.refuse("mamba_ssm_cache_dtype", f"must be one of {', '.join(_STATE_BYTES)}")
    return RecurrentState(conv_elements * ELEMENT_BYTES + recurrent_elements * _STATE_BYTES[dtype])


def _mamba(fields: Fields) -> tuple[RecurrentState, list[Tensors]]:
    """Mamba as in Jamba, with norms of dt, B and C."""
    hidden_size = fields.whole("hidden_size")
    width = fields.whole("mamba_expand", most=64) * hidden_size
    states, kernel = fields.whole("mamba_d_state"), fields.whole("mamba_d_conv", most=2**10)
    rank = math.ceil(hidden_size / 16)
    if fields.get("mamba_dt_rank", "auto") != "auto":
        rank = fields.whole("mamba_dt_rank")
    bias = fields.flag("mamba_proj_bias")
    conv = width * (kernel + (1 if fields.flag("mamba_conv_bias") else 0))
    tensors = [
        columns("mixer", "mamba.in_proj", hidden_size, 2 * width, bias=bias),
        Tensors("mixer", "even", conv),
        *rows("mixer", "mamba.x_proj", width, rank + 2 * states),
        columns("mixer", "mamba.dt_proj", rank, width, bias=True),
        Tensors("mixer", "even", width * states + width),  # A and D
        Tensors("norms", "none", rank + 2 * states),
        *rows("mixer", "mamba.out_proj", width, hidden_size, bias=bias),
    ]
    return _state(fields, width * (kernel - 1), width * states), tensors


def _mamba2(fields: Fields) -> tuple[RecurrentState, list[Tensors]]:
    hidden_size, num_heads = fields.whole("hidden_size"), fields.whole("mamba_n_heads", most=2**16)
    if fields.get("mamba_d_head", "auto") == "auto":
        head_dim = fields.whole("mamba_expand", most=64) * hidden_size // num_heads
    else:
        head_dim = fields.whole("mamba_d_head")
    states, kernel = fields.whole("mamba_d_state"), fields.whole("mamba_d_conv", most=2**10)
    width = num_heads * head_dim
    convolved = width + 2 * fields.whole("mamba_n_groups", most=2**16) * states
    bias = fields.flag("mamba_proj_bias")
    conv = convolved * (kernel + (1 if fields.flag("mamba_conv_bias") else 0))
    tensors = [
        columns("mixer", "mixer.in_proj", hidden_size, width + convolved + num_heads, bias=bias),
        Tensors("mixer", "even", conv + 3 * num_heads + width),  # and dt_bias, A, D, norm
        *rows("mixer", "mixer.out_proj", width, hidden_size, bias=bias),
    ]
    return _state(fields, convolved * (kernel - 1), width * states), tensors


def _delta(fields: Fields) -> tuple[RecurrentState, list[Tensors]]:
    """Gated delta net, as in Qwen3-Next."""
    hidden_size = fields.whole("hidden_size")
    value_heads = fields.whole("linear_num_value_heads", most=2**16)
    value_dim, key_dim = fields.whole("linear_value_head_dim"), fields.whole("linear_key_head_dim")
    keys = fields.whole("linear_num_key_heads", most=2**16) * key_dim
    values, kernel = value_heads * value_dim, fields.whole("linear_conv_kernel_dim", most=2**10)
    convolved = 2 * keys + values
    tensors = [
        columns("mixer", "linear_attn.in_proj_qkvz", hidden_size, convolved + values),
        columns("mixer", "linear_attn.in_proj_ba", hidden_size, 2 * value_heads),
        Tensors("mixer", "even", convolved * kernel + 2 * value_heads),  # and dt_bias, A
        Tensors("norms", "none", value_dim),
        *rows("mixer", "linear_attn.out_proj", values, hidden_size),
    ]
    return _state(fields, convolved * (kernel - 1), values * key_dim), tensors
