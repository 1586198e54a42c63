"""One relation between figures of a start-up log, and whether it holds."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Literal

from .facts import Stated
from .interval import Interval

_FEWEST_SHOWN = Fraction(1, 100)


@dataclass(frozen=True)
class Check:
    """One relation between figures of a log.

    `line_number` is that of the figure that is checked, `stated` what that figure may stand for,
    `computed` what the others make of it; both in bytes where `unit` is "GiB". `relation`: stated
    is `computed`, or at most that. `reason` says why a check is not applicable, or with what
    assumption it was made; it may be empty.
    """

    what: str
    line_number: int
    verdict: Literal["agrees", "disagrees", "not applicable"]
    unit: str
    reason: str = ""
    stated: Interval | None = None
    computed: Interval | None = None
    relation: Literal["=", "<="] = "="

    @property
    def difference(self) -> Fraction | None:
        """The distance between both sides as printed, in the unit (bytes for "GiB")."""
        if self.stated is None or self.computed is None:
            return None
        return abs(self.stated.middle - self.computed.middle)

    @property
    def allowed(self) -> Fraction | None:
        """The distance that rounding and whole blocks explain."""
        if self.stated is None or self.computed is None:
            return None
        return self.stated.half_width + self.computed.half_width

    def __str__(self) -> str:
        place, reason = f"line {self.line_number}", f" ({self.reason})" if self.reason else ""
        if self.stated is None or self.computed is None:
            return f"{place}: {self.what}: not applicable{reason}"
        allowed = self._number(self.allowed or Fraction(0))
        at_most = "at most " if self.relation == "<=" else ""
        joint = "and" if self.verdict == "agrees" else "but"
        return (
            f"{place}: the log says {self._shown(self.stated)}, {joint} {self.what} gives {at_most}"
            f"{self._shown(self.computed)} (rounding explains {allowed}){reason}"
        )

    def _shown(self, side: Interval) -> str:
        if self.unit in ("tokens", "blocks") and ceil(side.low) < floor(side.high):
            return f"{ceil(side.low):,} to {floor(side.high):,} {self.unit}"
        return f"{self._number(side.middle)} {self.unit}".rstrip()

    def _number(self, value: Fraction) -> str:
        if self.unit == "GiB":
            value /= 2**30
        if value.denominator == 1:
            return f"{value.numerator:,}"
        if 0 < abs(value) < _FEWEST_SHOWN:
            return f"{float(value):.2g}"
        return f"{float(value):,.2f}"


def compared(
    what: str,
    stated: Stated,
    computed: Interval,
    reason: str = "",
    relation: Literal["=", "<="] = "=",
) -> Check:
    """A check of a figure against what others make of it."""
    side = Interval.of(stated)
    agrees = side.overlaps(computed) if relation == "=" else side.low <= computed.high
    unit = "GiB" if stated.unit in ("GiB", "MiB") else stated.unit
    if stated.unit == "bytes" and stated.name != "kv_bytes_per_token":
        unit = "GiB"
    verdict: Literal["agrees", "disagrees"] = "agrees" if agrees else "disagrees"
    return Check(what, stated.line_number, verdict, unit, reason, side, computed, relation)


def compared_with_any(
    what: str, stated: Stated, computed: Iterable[Interval], reason: str = ""
) -> Check:
    """A check that holds if one of several versions' ways to make the figure agrees."""
    checks = [compared(what, stated, one, reason) for one in computed]
    return next((check for check in checks if check.verdict == "agrees"), checks[0])


def not_applicable(what: str, stated: Stated, reason: str) -> Check:
    """A check of a figure that cannot be made."""
    return Check(what, stated.line_number, "not applicable", stated.unit, reason)


def missing(**figures: object) -> str:
    """What the log does not state of the figures, as a reason; empty if it states all."""
    names = [name.replace("_", " ") for name, figure in figures.items() if figure is None]
    return f"the log does not state {', '.join(names)}" if names else ""
