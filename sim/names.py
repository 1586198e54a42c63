"""Match what a user typed with the names that exist."""

import difflib
import re
from collections.abc import Iterable, Sequence

# A point between digits belongs to a number: OPT-1.3B is not OPT-13B.
_SEPARATORS = re.compile(r"(?:[-_ ]|\.(?!\d)|(?<!\d)\.)+")


def name_parts(name: str) -> list[str]:
    """Lower-case parts of a name, without its organisation: `facebook/OPT-13B` is `opt`, `13b`."""
    last = name.strip().rstrip("/").rsplit("/", 1)[-1]
    return [part for part in _SEPARATORS.split(last.casefold()) if part]


def name_key(name: str) -> str:
    """The form in which two spellings of one name are equal."""
    return "".join(name_parts(name))


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice most like `name`, or None if none is at all like it (difflib ratio below 0.6)."""
    by_key = {name_key(choice): choice for choice in choices}
    found = difflib.get_close_matches(name_key(name), list(by_key), n=1)
    return by_key[found[0]] if found else None


def nearest_settings(name: str, choices: Iterable[str]) -> list[str]:
    """The flags or keys that `name` may stand for, at most three.

    Those with words that all of its words begin, in the fewest words; else the one that is hardly spelled otherwise
    (difflib ratio of at least 0.8).
    """
    known, words = list(choices), name_parts(name)
    holding = [
        choice
        for choice in known
        if words
        and all(any(part.startswith(word) for part in name_parts(choice)) for word in words)
    ]
    least = min((len(name_parts(choice)) for choice in holding), default=0)
    shortest = [choice for choice in holding if len(name_parts(choice)) == least]
    if 1 <= len(shortest) <= 3:
        return shortest
    by_key = {name_key(choice): choice for choice in known}
    found = difflib.get_close_matches(name_key(name), list(by_key), n=1, cutoff=0.8)
    return [by_key[key] for key in found]


def meant_setting(name: str, choices: Iterable[str]) -> str:
    """`did you mean X?` of a flag or key, or nothing."""
    found = nearest_settings(name, choices)
    return f"did you mean {' or '.join(found)}?" if found else ""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """` (did you mean X?)`, or nothing where no choice is near: to be put behind a wrong name."""
    found = nearest(name, choices)
    return f" (did you mean {found}?)" if found else ""


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return ", ".join(names[:-1]) + (" and " if names[1:] else "") + names[-1]
