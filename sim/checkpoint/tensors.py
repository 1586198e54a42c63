"""Tensors of a model as they are before quantisation, gathered into weight parts."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..model import Matrix, Split, WeightPart

ELEMENT_BYTES = 2  # models are served in 16 bits


@dataclass(frozen=True)
class Tensors:
    """Tensors of one part that are shared out alike; `element_bytes` each element."""

    part: str
    split: Split
    num_params: int
    matrix: Matrix | None = None
    element_bytes: int = ELEMENT_BYTES


def columns(
    part: str,
    module: str,
    inputs: int,
    outputs: int,
    *,
    bias: bool = False,
    split: Split = "even",
    num: int = 1,
) -> Tensors:
    """`num` linear layers whose outputs, and so biases, are shared out over the ranks."""
    params = num * (inputs * outputs + (outputs if bias else 0))
    return Tensors(part, split, params, Matrix(module, num, inputs, outputs))


def rows(
    part: str, module: str, inputs: int, outputs: int, *, bias: bool = False, num: int = 1
) -> list[Tensors]:
    """`num` linear layers whose inputs are shared out: each rank holds the whole biases."""
    made = [Tensors(part, "even", num * inputs * outputs, Matrix(module, num, inputs, outputs))]
    if bias:
        made.append(Tensors("biases", "none", num * outputs))
    return made


def gather(tensors: Iterable[Tensors], layer: int | None) -> tuple[WeightPart, ...]:
    """One part for each name and split, in order of appearance."""
    grouped: dict[tuple[str, Split], list[Tensors]] = {}
    for tensor in tensors:
        if tensor.num_params:
            grouped.setdefault((tensor.part, tensor.split), []).append(tensor)
    return tuple(
        WeightPart(
            name=name,
            num_params=sum(tensor.num_params for tensor in group),
            num_bytes=sum(tensor.num_params * tensor.element_bytes for tensor in group),
            split=split,
            layer=layer,
            matrices=tuple(tensor.matrix for tensor in group if tensor.matrix),
        )
        for (name, split), group in grouped.items()
    )
