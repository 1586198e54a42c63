"""From measured steps to a cost model."""

from .fit import Fit, fit_steps
from .samples import Samples

__all__ = ["Fit", "Samples", "fit_steps"]
