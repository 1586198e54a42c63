"""Arithmetic with what is known up to its rounding."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Self

from .facts import Stated


@dataclass(frozen=True)
class Interval:
    """Every value from `low` to `high`, ends included. Memory is in bytes."""

    low: Fraction
    high: Fraction

    @classmethod
    def of(cls, stated: Stated) -> Self:
        """What a printed figure may stand for."""
        factor = stated.unit_bytes
        low, high = stated.value - stated.half_width, stated.value + stated.half_width
        return cls(low * factor, high * factor)

    @classmethod
    def exactly(cls, value: int | Fraction) -> Self:
        return cls(Fraction(value), Fraction(value))

    @property
    def middle(self) -> Fraction:
        return (self.low + self.high) / 2

    @property
    def half_width(self) -> Fraction:
        return (self.high - self.low) / 2

    def __add__(self, other: "Interval") -> "Interval":
        return Interval(self.low + other.low, self.high + other.high)

    def __sub__(self, other: "Interval") -> "Interval":
        return Interval(self.low - other.high, self.high - other.low)

    def __mul__(self, other: "Interval") -> "Interval":
        corners = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval(min(corners), max(corners))

    def __truediv__(self, other: "Interval") -> "Interval":
        assert other.low > 0, f"division by {other.low} to {other.high}"
        return self * Interval(1 / other.high, 1 / other.low)

    def overlaps(self, other: "Interval") -> bool:
        return self.low <= other.high and other.low <= self.high
