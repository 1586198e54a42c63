"""The terms that a pool of KV memory is explained by."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

# given: by the user. log: stated by an engine's log. catalogue: a published figure. formula: follows
# from shapes or settings. estimate: an uncalibrated formula or an assumption.
Source = Literal["given", "log", "catalogue", "formula", "estimate"]


@dataclass(frozen=True)
class Term:
    """One addend of a rank's KV memory; what is taken off is negative."""

    name: str
    num_bytes: int
    source: Source
    detail: str


def sum_bytes(terms: Iterable[Term]) -> int:
    """What the terms add up to; may be negative."""
    return sum(term.num_bytes for term in terms)
