"""JSON values that know where they are, so that every complaint names the file and the JSON path."""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NoReturn

from .checks import MAX_SPAN_S, MAX_TOKENS, fail_at, json_text, shown, time_problem, token_problem

_DATE = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.([0-9]{1,9}))?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)


@dataclass(slots=True, eq=False)  # frozen, it would take twice as long to make
class JsonValue:
    """A value, the place of its document ("trace.jsonl line 7") and its path inside it."""

    value: Any
    place: str
    parent: "JsonValue | None" = None
    key: str | int = ""

    @property
    def path(self) -> str:
        """As messages write it: `requests[3].in`; empty for the document itself."""
        above = self.parent.path if self.parent else ""
        if isinstance(self.key, int):
            return f"{above}[{self.key}]"
        return f"{above}.{shown(self.key)}" if above else self.key and shown(self.key)

    def fail(self, problem: str) -> NoReturn:
        """Raise the error for this value; `problem` goes on with a sentence of which it is the subject."""
        fail_at(self.place, f"{self.path or 'the value'} {problem}")

    def wrong(self, wanted: str) -> NoReturn:
        """Raise the error for a value that is not `wanted`."""
        self.fail(f"is {shown(json_text(self.value))}; it must be {wanted}")

    def __getitem__(self, key: str) -> "JsonValue":
        """The value at a key that this object must have."""
        if key not in self.object():
            of = f" of {self.path}" if self.path else ""
            seen = ", ".join(map(shown, list(self.value)[:12])) or "none"
            fail_at(self.place, f"key {key}{of} is missing; keys seen: {seen}")
        return JsonValue(self.value[key], self.place, self, key)

    def get(self, key: str) -> "JsonValue | None":
        """The value at a key of this object; None if it is absent or null."""
        value = self.object().get(key)
        return None if value is None else JsonValue(value, self.place, self, key)

    def object(self) -> dict[str, Any]:
        if type(self.value) is not dict:
            self.wrong("an object")
        return self.value

    def items(self) -> "Iterator[JsonValue]":
        """The values of this list."""
        if type(self.value) is not list:
            self.wrong("a list")
        return (JsonValue(value, self.place, self, i) for i, value in enumerate(self.value))

    def text(self) -> str:
        if type(self.value) is not str:
            self.wrong("text")
        return self.value

    def name(self) -> str:
        """An identifier: text, or a whole number as text."""
        return json_text(self.value) if type(self.value) is int else self.text()

    def one_of(self, choices: Collection[str]) -> str:
        if type(self.value) is not str or self.value not in choices:
            self.wrong(f"one of {', '.join(choices)}")
        return self.value

    def whole(self, least: int, most: int) -> int:
        if type(self.value) is not int or not least <= self.value <= most:
            self.wrong(f"a whole number from {least:,} to {most:,}")
        return self.value

    def tokens(self, least: int = 1) -> int:
        """A token count from `least` to MAX_TOKENS."""
        if type(self.value) is not int or not least <= self.value <= MAX_TOKENS:
            fail_at(self.place, token_problem(self.path, json_text(self.value), least))
        return self.value

    def ids(self, bits: int) -> list[int]:
        """A list of whole numbers from 0, below 2^bits."""
        ids: list[int] = self.value if type(self.value) is list else [-1]
        # There may be thousands; these are no loops in Python.
        if set(map(type, ids)) - {int} or (ids and not 0 <= min(ids) <= max(ids) < 1 << bits):
            self.wrong(f"a list of ids, whole numbers from 0 and below 2^{bits}")
        return ids

    def ns(self, unit_ns: int, unit: str) -> int:
        """A time in units of `unit_ns`, as nanoseconds: the decimal text, rounded once, half up."""
        if type(self.value) is not float:
            return self.whole_ns(unit_ns, unit)
        # A comparison with a NaN is false.
        if not 0 <= self.value <= MAX_SPAN_S * (10**9 // unit_ns):
            fail_at(self.place, time_problem(self.path, json_text(self.value), unit))
        exact = Decimal(repr(self.value)) * unit_ns
        return int(exact.quantize(Decimal(1), rounding=ROUND_HALF_UP))

    def whole_ns(self, unit_ns: int, unit: str) -> int:
        """A time in whole units of `unit_ns`, as nanoseconds."""
        if type(self.value) is not int or not 0 <= self.value * unit_ns <= MAX_SPAN_S * 10**9:
            fail_at(self.place, time_problem(self.path, json_text(self.value), unit))
        return self.value * unit_ns

    def date_ns(self) -> int:
        """A date with a time of day, as nanoseconds since 1970; without a zone it counts as UTC."""
        match = _DATE.fullmatch(self.text())
        try:
            if not match:
                raise ValueError
            whole, fraction, zone = match.groups(default="")
            date = datetime.fromisoformat(whole + zone.replace("Z", "+00:00"))
        except ValueError:  # also a 13th month, a 25th hour
            self.wrong("a date like 2026-02-25T10:00:00.5Z, with at most nine decimals")
        since = date.replace(tzinfo=date.tzinfo or UTC) - datetime.fromtimestamp(0, UTC)
        return since // timedelta(seconds=1) * 10**9 + int(fraction.ljust(9, "0"))


def count_unknown(value: JsonValue, known: frozenset[str], unknown_keys: Counter[str]) -> None:
    """Count the keys of an object that are not `known`."""
    object = value.object()
    if not object.keys() <= known:
        unknown_keys.update(key for key in object if key not in known)
