"""Rows of figures, their goals, and the report that holds them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from measure import Sample

_COLUMNS = (
    "measurement",
    "trace",
    "requests",
    "runs",
    "unit",
    "median",
    "best",
    "per loop",
    "goal",
    "met",
    "running",
    "preemptions",
    "all finished",
)
_NUM_TEXT_COLUMNS = 2
_SIGNS = {"at_least": ">=", "at_most": "<=", "below": "<"}


@dataclass(frozen=True)
class Unit:
    """How a kind of figure is written, and which way is better."""

    name: str
    digits: str  # format specification
    higher_is_better: bool

    def best(self, values: Sequence[float]) -> float:
        return max(values) if self.higher_is_better else min(values)


RATE = Unit("requests/s", ",.0f", higher_is_better=True)
RATIO = Unit("ratio", ".2f", higher_is_better=False)
SECONDS = Unit("s", ".3f", higher_is_better=False)
GIGABYTES = Unit("GB", ".2f", higher_is_better=False)
RUNS = Unit("runs", ",.0f", higher_is_better=False)


@dataclass(frozen=True)
class Goal:
    """A limit that the median is held to: `at_least`, `at_most` or `below` it."""

    kind: str
    limit: float

    def __post_init__(self) -> None:
        assert self.kind in _SIGNS, f"kind is {self.kind!r}"

    def met(self, value: float) -> bool:
        if self.kind == "at_least":
            return value >= self.limit
        return value < self.limit if self.kind == "below" else value <= self.limit

    def text(self) -> str:
        return f"{_SIGNS[self.kind]} {self.limit:,g}"


@dataclass(frozen=True)
class Row:
    """One line of the table: a figure of every run, and the same against the loop."""

    what: str
    trace: str
    unit: Unit
    values: tuple[float, ...]
    per_loop: tuple[float, ...] = ()  # empty where time plays no part
    goal: Goal | None = None
    samples: tuple[Sample, ...] = ()  # of every run; none where nothing was simulated

    def __post_init__(self) -> None:
        assert self.values, f"{self.what} has no figures"
        assert len(self.per_loop) in (0, len(self.values)), (
            f"{self.what}: {len(self.per_loop)} of {len(self.values)} figures against the loop"
        )

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def cells(self) -> tuple[str, ...]:
        """The text of every column of the table."""
        digits = self.unit.digits
        # Runs of one row simulate the same thing, so the first one's counts are everyone's.
        sample = self.samples[0] if self.samples else None
        return (
            self.what,
            self.trace,
            f"{sample.num_requests:,}" if sample else "",
            str(len(self.values)),
            self.unit.name,
            format(self.median, digits),
            format(self.unit.best(self.values), digits),
            format(statistics.median(self.per_loop), digits) if self.per_loop else "",
            self.goal.text() if self.goal else "",
            _yes(self.goal.met(self.median)) if self.goal else "",
            f"{sample.mean_running:.1f}" if sample else "",
            f"{sample.preemptions:,}" if sample else "",
            _yes(all(taken.all_finished for taken in self.samples)) if sample else "",
        )


def rate_row(what: str, trace: str, samples: Sequence[Sample], goal: Goal | None = None) -> Row:
    """Requests per second, and per loop-unit, of each sample."""
    return Row(
        what,
        trace,
        RATE,
        tuple(sample.num_requests / sample.seconds for sample in samples),
        tuple(sample.num_requests * sample.loop_s / sample.seconds for sample in samples),
        goal,
        tuple(samples),
    )


def ratio_row(
    what: str,
    trace: str,
    samples: Sequence[Sample],
    base: Sequence[Sample],
    goal: Goal | None = None,
    nums: tuple[int, int] | None = None,
) -> Row:
    """Seconds per request of each sample over the median of `base`; `per_loop` in loop-units.

    Per anything else if `nums` says how much of it a run of `samples` has, and one of `base`.
    """
    num, base_num = nums or (samples[0].num_requests, base[0].num_requests)
    base_s = statistics.median(sample.seconds / base_num for sample in base)
    base_units = statistics.median(sample.seconds / base_num / sample.loop_s for sample in base)
    return Row(
        what,
        trace,
        RATIO,
        tuple(sample.seconds / num / base_s for sample in samples),
        tuple(sample.seconds / num / sample.loop_s / base_units for sample in samples),
        goal,
        tuple(samples),
    )


def unfinished_row(samples: Sequence[Sample]) -> Row:
    """How many of all runs rejected a request or did not finish one."""
    count = sum(not sample.all_finished for sample in samples)
    return Row("runs with unfinished requests", "all", RUNS, (count,), goal=Goal("at_most", 0))


def render(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table with aligned columns, readable as it stands."""
    lines = [_COLUMNS, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    rule = [
        "-" * width if i < _NUM_TEXT_COLUMNS else "-" * (width - 1) + ":"
        for i, width in enumerate(widths)
    ]
    text = [
        [
            cell.ljust(width) if i < _NUM_TEXT_COLUMNS else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [text[0], rule, *text[1:]])


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"
