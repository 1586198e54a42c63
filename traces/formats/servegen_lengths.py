"""Distributions of token counts of a ServeGen client, `*-dataset.json`. See `servegen`."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Int64
from .checks import MAX_TOKENS
from .json_value import JsonValue, count_unknown

_PERIOD_S = 21_600
_FIELDS = frozenset(("input_tokens", "output_tokens"))
# The text of a Python dict; nothing of it is run.
_ENTRY = (
    r"\s*+(?P<tokens>[0-9]{1,18})\s*+:"
    r"\s*+(?P<share>[0-9]{1,30}(?:\.[0-9]{0,30})?(?:[eE][-+]?[0-9]{1,3})?)\s*+"
)
_UNNAMED = re.sub(r"\?P<\w+>", "?:", _ENTRY)
_DICT = re.compile(rf"\{{(?:{_UNNAMED},)*+(?:{_UNNAMED})?\s*+\}}")
# Upstream's probabilities are sums of floats.
_SUM_TOLERANCE = 1e-6


class Distribution(NamedTuple):
    values: Int64  # token counts
    probabilities: npt.NDArray[np.float64]  # of sum 1; both empty where there were no requests

    def draw(self, num_draws: int, rng: np.random.Generator) -> Int64:
        drawn: Int64 = rng.choice(self.values, size=num_draws, p=self.probabilities)
        return drawn


# Start of 6 hours in s: distributions of input and of output tokens.
LengthTable = Mapping[int, tuple[Distribution, Distribution]]


def read_lengths(document: JsonValue, unknown_keys: Counter[str]) -> LengthTable:
    """The distributions of a client. Raises UserError for anything but what the format has."""
    table = {}
    for key in document.object():
        if not (key.isdecimal() and key.isascii() and len(key) <= 9) or int(key) % _PERIOD_S:
            document[key].fail(f"is no start of 6 hours, a multiple of {_PERIOD_S:,} s")
        count_unknown(document[key], _FIELDS, unknown_keys)
        table[int(key)] = (
            _distribution(document[key]["input_tokens"]),
            _distribution(document[key]["output_tokens"]),
        )
    return table


def lengths_at(table: LengthTable, start_s: int) -> tuple[Distribution, Distribution] | None:
    """Those of the 6 hours around a time; None if one of the two is not known."""
    both = table.get(start_s // _PERIOD_S * _PERIOD_S)
    return both if both and all(len(each.values) for each in both) else None


def _distribution(value: JsonValue) -> Distribution:
    if not _DICT.fullmatch(value.text()):
        value.wrong('the text of a dict of token counts and probabilities, as "{12: 0.5, 40: 0.5}"')
    entries = [(int(tokens), float(share)) for tokens, share in re.findall(_ENTRY, value.text())]
    if any(not 1 <= tokens <= MAX_TOKENS for tokens, _ in entries):
        value.fail(f"has a token count that is not from 1 to {MAX_TOKENS:,}")
    probabilities = np.array([share for _, share in entries], dtype=np.float64)
    if entries and not abs(probabilities.sum() - 1) <= _SUM_TOLERANCE:
        value.fail(f"has probabilities of sum {probabilities.sum():.6g}; it must be 1")
    values = np.array([tokens for tokens, _ in entries], dtype=np.int64)
    return Distribution(values, probabilities / probabilities.sum() if entries else probabilities)
