"""Models from the files that their checkpoints come with."""

from .quantization import QUANTIZATIONS, quantize
from .reader import model_from_config, read_model

__all__ = ["QUANTIZATIONS", "model_from_config", "quantize", "read_model"]
