"""How scores are made of dot products."""

import math
from dataclasses import dataclass

import torch

from ..errors import KernelInputError
from .tensors import check_sinks


@dataclass(frozen=True)
class Scores:
    """A score is scale * (q . k); a `soft_cap` c > 0 makes it c * tanh(score / c).

    `window` > 0: a token sees the last `window` tokens, itself included; 0: all. `sinks`: one
    natural logit a head, which joins the denominator and nothing else.
    """

    scale: float
    window: int = 0
    soft_cap: float = 0.0
    sinks: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.scale < math.inf:
            raise KernelInputError(f"scale is {self.scale}; it must be positive and finite")
        if self.window < 0:
            raise KernelInputError(f"window is {self.window}; it must be 0 (all) or more")
        if not 0.0 <= self.soft_cap < math.inf:
            raise KernelInputError(
                f"soft_cap is {self.soft_cap}; it must be 0 (none) or positive and finite"
            )

    def check(self, num_heads: int, like: torch.Tensor) -> None:
        """Raise KernelInputError if the sinks do not fit `num_heads` heads on `like`'s device."""
        check_sinks(self.sinks, num_heads, like)

    @property
    def tanh_scale(self) -> float:
        """What dot products are multiplied with before the tanh of a soft cap; unused without."""
        return self.scale / self.soft_cap if self.soft_cap else 0.0

    @property
    def logit_scale(self) -> float:
        """What makes a logit of a dot product, or of its tanh."""
        return self.soft_cap or self.scale
