"""What Gemma 3n has beside attention and feed-forward: inputs of each layer, AltUp and LAuReL.

Shapes: Hugging Face transformers 4.57, modeling_gemma3n.py; what each rank holds: vLLM 0.32.
"""

from .fields import Fields
from .tensors import Tensors, columns, rows


def layer_tensors(fields: Fields) -> list[Tensors]:
    """Tensors of one layer; its norms are counted with the others."""
    hidden_size, width = fields.whole("hidden_size"), fields.whole("hidden_size_per_layer_input")
    rank, inputs = fields.whole("laurel_rank"), fields.whole("altup_num_inputs", most=64)
    # Two small matrices of coefficients, a router, and a scale of the output.
    altup = inputs**2 + inputs**3 + hidden_size * inputs + hidden_size
    return [
        columns("laurel", "laurel.linear_left", hidden_size, rank),
        *rows("laurel", "laurel.linear_right", rank, hidden_size),
        Tensors("altup", "none", altup),
        Tensors("layer_input", "none", 2 * hidden_size * width),
    ]


def input_tensors(fields: Fields) -> list[Tensors]:
    """Tensors before the first layer."""
    hidden_size, width = fields.whole("hidden_size"), fields.whole("hidden_size_per_layer_input")
    all_layers = width * fields.whole("num_hidden_layers")
    vocab_size = fields.whole("vocab_size_per_layer_input", most=2**26)
    others = fields.whole("altup_num_inputs", most=64) - 1
    return [
        Tensors("layer_embedding", "even", vocab_size * all_layers),
        Tensors("layer_embedding", "even", hidden_size * all_layers),
        Tensors("layer_embedding", "none", width),
        Tensors("altup", "even", 2 * others * hidden_size**2),
    ]
