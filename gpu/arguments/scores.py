"""How scores are made of dot products."""

from dataclasses import dataclass
from numbers import Integral, Real

import torch

from ..errors import KernelInputError
from .tensors import check_sinks

MAX_INT32 = 2**31 - 1
FP32 = torch.finfo(torch.float32)  # what kernels compute scores in


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
        for name, kind in (("scale", Real), ("window", Integral), ("soft_cap", Real)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                word = "an integer" if kind is Integral else "a number"
                raise KernelInputError(f"{name} is {type(value).__name__}; it must be {word}")
        if not FP32.tiny <= self.scale <= FP32.max:
            raise KernelInputError(f"scale is {self.scale}; it must be positive and finite")
        if self.window < 0:
            raise KernelInputError(f"window is {self.window}; it must be 0 (all) or more")
        # No context is longer, and kernels count tokens in 32 bits.
        object.__setattr__(self, "window", min(int(self.window), MAX_INT32))
        if self.soft_cap and not FP32.tiny <= self.soft_cap <= FP32.max:
            raise KernelInputError(
                f"soft_cap is {self.soft_cap}; it must be 0 (none) or positive and finite"
            )

    def check(self, num_heads: int, like: torch.Tensor) -> None:
        """Raise KernelInputError if the sinks do not fit `num_heads` heads on `like`'s device."""
        check_sinks(self.sinks, num_heads, like)

    @property
    def tanh_scale(self) -> float:
        """What dot products are multiplied with before the tanh of a soft cap; unused without."""
        return float(self.scale / self.soft_cap) if self.soft_cap else 0.0

    @property
    def logit_scale(self) -> float:
        """What makes a logit of a dot product, or of its tanh."""
        return float(self.soft_cap or self.scale)
