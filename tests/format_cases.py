"""What the tests of trace formats share: small files, what a trace says, and broken files."""

import copy
import gzip
import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from kvtwin.traces import Trace, UserError, find_prefixes, open_trace, waits
from kvtwin.traces.formats.detect import format_of
from kvtwin.traces.formats.source import ReadOptions, read_head

S = 10**9
Content = str | bytes | dict[str, Any] | list[Any]


def write(path: Path, content: Content) -> Path:
    """`content` as a file: text and bytes as they are, anything else as JSON."""
    if isinstance(content, dict | list):
        content = json.dumps(content)
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def jsonl(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def read(path: Path, content: Content, **options: Any) -> Trace:
    return open_trace(write(path, content), options=ReadOptions(**options))


def failure(path: Path, content: Content | None = None, **options: Any) -> str:
    """The one line with which reading fails; it begins with the path."""
    if content is not None:
        write(path, content)
    with pytest.raises(UserError) as caught:
        open_trace(path, options=ReadOptions(**options))
    message = str(caught.value)
    assert message.startswith(str(path)), message
    assert "\n" not in message
    assert len(message) < 700
    return message


def column(trace: Trace, name: str) -> list[int]:
    """A column of all chunks."""
    return [value for chunk in trace.chunks for value in getattr(chunk, name).tolist()]


def lengths(trace: Trace) -> list[tuple[int, int]]:
    """Prompt and output tokens of each request."""
    prompts, outputs = column(trace, "num_prompt_tokens"), column(trace, "num_output_tokens")
    return list(zip(prompts, outputs, strict=True))


def awaited(trace: Trace) -> list[tuple[list[int], int]]:
    """The rows that each request waits for, and for how long after the last of them, in ns."""
    found = waits(trace)
    ends = found.offsets.tolist()
    rows = [found.rows[a:b].tolist() for a, b in pairwise(ends)]
    return list(zip(rows, found.think_ns.tolist(), strict=True))


def hits(trace: Trace, block_tokens: int = 1) -> list[int]:
    """Leading full blocks of each prompt that an earlier request had; an infinite cache's hits."""
    seen = np.minimum(find_prefixes(trace).num_seen_tokens(), column(trace, "num_prompt_tokens"))
    return (seen // block_tokens).tolist()


_WEIRD = st.one_of(
    st.sampled_from([None, True, 0, -1, 1, 2, 10**7, 10**18, 2**63, 2**64, 10**400]),
    st.sampled_from([0.5, float("inf"), -float("inf"), float("nan"), [], [0], {}, [[]]]),
    st.sampled_from(["", "x", "9", "subagent", "2026-01-01T00:00:00Z", "[]", "{}", "{1: 1}"]),
)
_BYTES = st.one_of(
    st.binary(min_size=1, max_size=4),
    st.sampled_from([b"\n", b"\r\n", b"\r", b",", b'"', b"-", b".", b"e9", b"9" * 20, b"nan"]),
    st.sampled_from([b"{", b"}", b"[", b"]", b":", b"null", b" ", b"\0", b"\xff", b"\xef\xbb\xbf"]),
)


@st.composite
def broken_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """A file with a few spans replaced, removed or inserted."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 12)))
        data = data[:start] + draw(st.one_of(st.just(b""), _BYTES)) + data[end:]
    return data


@st.composite
def broken_json(draw: st.DrawFn, value: Any) -> bytes:
    """A JSON document, or rows of JSON lines, with a few values replaced, removed or repeated."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(value))
        if not places:
            break
        holder, key = draw(st.sampled_from(places))
        change = draw(st.sampled_from(["replace", "replace", "remove", "repeat"]))
        if change == "replace":
            holder[key] = copy.deepcopy(draw(_WEIRD))
        elif change == "remove":
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            holder[f"{key}2"] = holder[key]
    return json.dumps(value).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in `value`, and each key or index in it."""
    if isinstance(value, dict | list):
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield value, key
            yield from _places(item)


def check_fuzzed(path: Path, data: bytes, format: str | None, **options: Any) -> None:
    """Reading gives a trace whose first request comes at 0, or a UserError of one line."""
    path.write_bytes(data)
    with suppress(UserError):
        format_of(read_head(path), None, has_columns=False)
    trace = message = None
    try:
        trace = open_trace(path, format, ReadOptions(**options))
    except UserError as error:
        message = str(error)
    if trace is None:
        assert message is not None
        assert "\n" not in message
        return
    # TraceChunk checks the columns, `waits` that calls wait for earlier ones only.
    assert trace.chunks[0].arrival_ns[0] == 0
    waits(trace)
    find_prefixes(trace)
