"""The named length distributions that the generator knows, with where each number comes from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Lengths:
    """A lognormal distribution of token counts, by its mean and coefficient of variation (CV)."""

    mean: float  # tokens, before rounding and clipping
    cv: float
    mean_source: str
    cv_source: str
    cv_fitted: bool  # True: a fit, not a published number

    def __post_init__(self) -> None:
        assert math.isfinite(self.mean), f"mean is {self.mean}"
        assert self.mean > 0, f"mean is {self.mean}"
        assert math.isfinite(self.cv), f"cv is {self.cv}"
        assert self.cv > 0, f"cv is {self.cv}"

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm: sigma^2 = ln(1 + cv^2)."""
        return math.sqrt(math.log1p(self.cv**2))

    @property
    def mu(self) -> float:
        """Mean of the logarithm: mu = ln(mean) - sigma^2 / 2."""
        return math.log(self.mean) - self.sigma**2 / 2


@dataclass(frozen=True)
class Workload:
    """Prompt and output lengths, drawn independently of each other."""

    prompt: Lengths
    output: Lengths


_FIG_11 = "Kwon et al., PagedAttention, SOSP 2023, Figure 11"
_CHOSEN = "fitted: the paper publishes no spread"

WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        "sharegpt-like": Workload(
            prompt=Lengths(161.31, 1.3, _FIG_11, _CHOSEN, cv_fitted=True),
            output=Lengths(
                337.99,
                0.88,
                _FIG_11,
                "fitted: reproduces the 'Orca (Max)' bar of Figure 2 of the same paper",
                cv_fitted=True,
            ),
        ),
        "alpaca-like": Workload(
            prompt=Lengths(19.31, 0.8, _FIG_11, _CHOSEN, cv_fitted=True),
            output=Lengths(58.45, 1.0, _FIG_11, _CHOSEN, cv_fitted=True),
        ),
    }
)
