"""Formats of quantised weights, and what a model weighs in them."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from kvtwin.traces import UserError

from ..model import Matrix, ModelSpec, WeightPart
from ..names import did_you_mean

_LINEAR_ELEMENT_BYTES = 2  # of a matrix that is not quantised
Applies = Callable[[int | None, Matrix], bool]


@dataclass(frozen=True)
class Format:
    """How the weights of a linear layer are stored.

    One scale of `scale_bytes` for each `scale_inputs` x `scale_outputs` weights (0: all), with a
    zero point of `zero_bits`; `index_bytes` for each input (GPTQ's order of groups); `fixed_bytes`
    for each matrix. `experts_only`: everything but experts keeps 16 bits.
    """

    label: str
    weight_bits: int
    scale_bytes: int
    scale_inputs: int = 0
    scale_outputs: int = 0
    zero_bits: int = 0
    index_bytes: int = 0
    fixed_bytes: int = 0
    experts_only: bool = False

    def matrix_bytes(self, matrix: Matrix) -> int:
        """Bytes of all copies of `matrix`, scales and zero points included."""
        inputs, outputs = matrix.num_inputs, matrix.num_outputs
        scales = math.ceil(inputs / (self.scale_inputs or inputs)) * math.ceil(
            outputs / (self.scale_outputs or outputs)
        )
        each = math.ceil(inputs * outputs * self.weight_bits / 8)
        each += scales * self.scale_bytes + math.ceil(scales * self.zero_bits / 8)
        each += inputs * self.index_bytes + self.fixed_bytes
        return matrix.num * each


# What `--quantization NAME` makes of a model with 16-bit weights. AWQ and GPTQ in the layout of
# their checkpoints (groups of 128, 4-bit zero points); NVFP4 as ModelOpt writes it.
QUANTIZATIONS: dict[str, Format] = {
    "fp8": Format("fp8, one scale a matrix", 8, 4),
    "fp8-block": Format("fp8, scales of 128 x 128 blocks", 8, 4, 128, 128),
    "int8": Format("int8, one scale an output", 8, 2, 0, 1),
    "awq": Format("AWQ 4-bit, groups of 128", 4, 2, 128, 1, zero_bits=4),
    "gptq": Format("GPTQ 4-bit, groups of 128", 4, 2, 128, 1, zero_bits=4, index_bytes=4),
    "w4a16": Format("4-bit, groups of 128, no zero points", 4, 2, 128, 1),
    "mxfp4": Format("MXFP4 experts", 4, 1, 32, 1, experts_only=True),
    "nvfp4": Format("NVFP4", 4, 1, 16, 1, fixed_bytes=8),
    # A byte for 64 weights. The second level of scales and the tables, under 0.1 %, are left out.
    "bitsandbytes": Format("bitsandbytes NF4 (assumed layout)", 4, 1, 64, 1),
}


def quantize(model: ModelSpec, quantization: str) -> ModelSpec:
    """`model` with its linear layers in the format of that name: a key of QUANTIZATIONS.

    vLLM's name of a kernel for it, such as awq_marlin, is the same format.

    Embedding, output head, routers, norms and biases keep 16 bits. Raises UserError for unknown
    names, for models that are quantised already, and for MXFP4 without experts.
    """
    chosen = QUANTIZATIONS.get(quantization.removesuffix("_marlin"))
    if chosen is None:
        hint = did_you_mean(quantization, QUANTIZATIONS)
        raise UserError(
            f"--quantization {quantization} is not known{hint}; known are: {', '.join(QUANTIZATIONS)}"
        )
    if model.precision:
        raise UserError(
            f"--quantization {quantization}: {model.name} is shipped quantised ({model.precision}); "
            f"leave the flag out"
        )
    if chosen.experts_only and not any(part.name == "experts" for part in model.weights):
        raise UserError(
            f"--quantization {quantization} is for experts, and {model.name} has none; use another"
        )
    weights = requantized(model.weights, lambda layer, matrix: None if layer is None else chosen)
    return dataclasses.replace(model, weights=weights, precision=chosen.label)


def requantized(
    weights: tuple[WeightPart, ...],
    format_of: Callable[[int | None, Matrix], Format | None],
) -> tuple[WeightPart, ...]:
    """16-bit `weights` with each matrix in the format that `format_of` gives for its layer.

    None leaves a matrix in 16 bits.
    """

    def part_bytes(part: WeightPart) -> int:
        num_bytes = part.num_bytes
        for matrix in part.matrices:
            chosen = format_of(part.layer, matrix)
            if chosen is None or (chosen.experts_only and part.name != "experts"):
                continue
            plain = matrix.num * matrix.num_inputs * matrix.num_outputs * _LINEAR_ELEMENT_BYTES
            num_bytes += chosen.matrix_bytes(matrix) - plain
        return num_bytes

    return tuple(dataclasses.replace(part, num_bytes=part_bytes(part)) for part in weights)
