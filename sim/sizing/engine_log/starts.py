"""A log holds one start of an engine after another: where one ends, and which one counts."""

from dataclasses import dataclass, field

from .facts import Reading, Stated
from .sentences import EngineFormat

# A start is complete when the engine has said how large its KV pool is.
_COMPLETE = ("num_tokens", "pool_tokens", "num_gpu_blocks")


@dataclass
class Start:
    """What one start states, while it is being read."""

    first_line: int
    readings: list[Reading] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    markers: set[tuple[str, str]] = field(default_factory=set)
    loads: set[str] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        return not self.names.isdisjoint(_COMPLETE)

    @property
    def last_line(self) -> int:
        return self.readings[-1].line_number if self.readings else self.first_line


class Starts:
    """The starts of one engine in a log, divided as its lines come in."""

    def __init__(self, engine: EngineFormat) -> None:
        self.engine = engine
        self.starts: list[Start] = []

    def add(self, text: str, rank: str, line_number: int, readings: list[Reading]) -> None:
        """A line that states something, in the order of the log."""
        process = rank.partition(" pid=")[0]
        marker = self.engine.markers.search(text)
        key = (marker.group(), process) if marker else None
        loads = any(reading.name == self.engine.loads for reading in readings)
        if not self.starts or self._begins(key, process if loads else None):
            self.starts.append(Start(line_number))
        start = self.starts[-1]
        start.readings += readings
        start.names.update(reading.name for reading in readings)
        if key is not None:
            start.markers.add(key)
        if loads:
            start.loads.add(process)

    def _begins(self, marker: tuple[str, str] | None, loading: str | None) -> bool:
        """Whether a marker, or weights loaded by a process, belong to a start after this one."""
        start = self.starts[-1]
        sized = not start.names.isdisjoint(self.engine.sizes)
        if marker is not None:
            # Data-parallel engines announce themselves one after another, in one start.
            return sized or (marker in start.markers and bool(start.loads))
        return loading in start.loads and sized

    @property
    def counting(self) -> Start | None:
        """The last complete start, else the last one; None if the engine said nothing."""
        complete = [start for start in self.starts if start.complete]
        candidates = complete or self.starts
        return candidates[-1] if candidates else None

    def notes(self) -> tuple[str, ...]:
        """What a reader should know about the choice of the start, a sentence each."""
        start = self.counting
        assert start is not None, "there is no start to tell of"
        number, total = self.starts.index(start) + 1, len(self.starts)
        place = f"lines {start.first_line} to {start.last_line}"
        if not start.complete:
            which = f"the last of {total} starts ({place})" if total > 1 else "the start"
            return (f"{which} does not say how large its KV pool is",)
        if total == 1:
            return ()
        if number < total:
            return (
                f"the log holds {total} starts; start {number} ({place}) is the last one that says"
                " how large its KV pool is, and it is the one read",
            )
        return (f"the log holds {total} starts; the last one ({place}) is the one read",)


def counting_by_rank(engine: EngineFormat, start: Start) -> dict[str, dict[str, Reading]]:
    """For each rank, in the order of the log, the statement of each fact that counts."""
    by_rank: dict[str, dict[str, Reading]] = {}
    for reading in start.readings:
        of_rank = by_rank.setdefault(reading.rank, {})
        before = of_rank.get(reading.name)
        if before is not None and (
            reading.name in engine.first_counts or _says_it_more_exactly(before, reading)
        ):
            continue
        of_rank[reading.name] = reading
    return by_rank


def _says_it_more_exactly(before: Reading, after: Reading) -> bool:
    """Whether `after` is `before` again, rounded more."""
    if not (isinstance(before, Stated) and isinstance(after, Stated)):
        return False
    if before.half_width >= after.half_width or before.unit != after.unit:
        return False
    return abs(before.value - after.value) <= before.half_width + after.half_width
