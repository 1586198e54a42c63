"""Measured steps: what they did, and how long they took."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..cost import TOTALS

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Samples:
    """Steps with `totals` [num_points, len(TOTALS)] and `durations_ns` [num_points, num_repeats].

    A point is one step; its repeats did the same again.
    """

    totals: Ints
    durations_ns: Ints

    def __post_init__(self) -> None:
        num_points = len(self.totals)
        assert self.totals.shape == (num_points, len(TOTALS)), self.totals.shape
        assert self.durations_ns.shape[0] == num_points, self.durations_ns.shape
        assert self.durations_ns.size, "no repeats"
        assert self.durations_ns.min() > 0, self.durations_ns.min()

    @property
    def typical_ns(self) -> Floats:
        """Median of the repeats: one interruption of the machine must not pass for the step's cost."""
        medians: Floats = np.median(self.durations_ns, axis=1)
        return medians

    def noise(self) -> Floats:
        """By what share each repeat differs from its step's median, flat: the device against itself."""
        if self.durations_ns.shape[1] == 1:
            return np.empty(0)
        typical = self.typical_ns[:, None]
        return (np.abs(self.durations_ns - typical) / typical).ravel()

    def at(self, points: npt.NDArray[np.int64]) -> "Samples":
        """The samples of some points alone."""
        return Samples(self.totals[points], self.durations_ns[points])
