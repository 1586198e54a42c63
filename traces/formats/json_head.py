"""By which keys JSON files that are one document are recognised."""

import re
from functools import lru_cache

from .source import Head

# Also a text that the end of the data cuts off; possessive, so that no text is looked at twice.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}:]', re.DOTALL)


def head_keys(head: Head) -> frozenset[str]:
    """The keys of the JSON object with which a file begins, as far as its head goes.

    The object may be the first of a list.
    """
    return frozenset(head.row) if head.row is not None else _scanned_keys(head.data)


@lru_cache(maxsize=1)  # each format asks for those of the same file
def _scanned_keys(data: bytes) -> frozenset[str]:
    data = data.lstrip()
    if data.startswith(b"["):
        data = data[1:].lstrip()
    keys: set[str] = set()
    if not data.startswith(b"{"):
        return frozenset()
    depth, before = 0, b""
    for match in _TOKEN.finditer(data):
        token = match.group()
        if token in (b"[", b"{"):
            depth += 1
        elif token in (b"]", b"}"):
            depth -= 1
            if depth == 0:
                break
        elif token == b":" and depth == 1:
            keys.add(before.strip(b'"').decode(errors="replace"))
        before = token
    return frozenset(keys)
