"""Rows of failed calls, which logs keep and no simulation can serve."""

import numpy as np
import numpy.typing as npt

from ..arrays import Int64
from .source import Source


def usable_rows(
    source: Source, num_prompt_tokens: Int64, num_output_tokens: Int64
) -> npt.NDArray[np.bool_]:
    """Which rows have prompt and output tokens. The others are counted as skipped, by reason."""
    failed, empty = num_output_tokens == 0, num_prompt_tokens == 0
    for reason, where in (
        ("failed call, no output tokens", failed),
        ("call without prompt tokens", empty & ~failed),
    ):
        if where.any():
            source.skipped[reason] += int(where.sum())
    usable: npt.NDArray[np.bool_] = ~(failed | empty)
    return usable
