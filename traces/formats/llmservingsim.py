"""LLMServingSim workloads, JSONL: requests, and agentic sessions of them, mixed as one likes.

Source: github.com/casys-kaist/LLMServingSim, docs/workloads/jsonl-format. A line with
`sub_requests` is a session: its first call comes at `arrival_time_ns`, each later one
`tool_duration_ns` (0 where absent) after the call before it finished. Lines may be in any order.
Optional token ids say what prompts and outputs hold; requests without them are like no other.
"""

from collections.abc import Iterator

from ..sessions import NONE, UNKNOWN_THINK_NS
from ..trace import TraceChunk
from .calls import LATER_CALLS, Call, chunk_of_calls, content_of_pieces
from .json_rows import json_rows
from .json_value import JsonValue, count_unknown
from .source import Head, Source
from .token_streams import packed, streams_of_tokens

SHAPE = "JSONL with input_toks, output_toks, arrival_time_ns, or with sub_requests"
_IDS = ("input_tok_ids", "output_tok_ids")
_FLAT_KEYS = ("input_toks", "output_toks", *_IDS)
_SUB_KEYS = frozenset((*_FLAT_KEYS, "tool_duration_ns"))


def recognises(head: Head) -> bool:
    return head.has_keys("arrival_time_ns", "input_toks", "output_toks") or head.has_keys(
        "arrival_time_ns", "sub_requests"
    )


def read(source: Source) -> Iterator[TraceChunk]:
    calls: list[Call] = []
    tokens: list[bytes] = []
    num_sessions = 0
    for line, row in json_rows(
        source, ("arrival_time_ns",), (*_FLAT_KEYS, "session_id", "sub_requests")
    ):
        value = JsonValue(row, source.place(line))
        arrival_ns = value["arrival_time_ns"].whole_ns(1, "whole nanoseconds")
        if "sub_requests" not in row:
            calls.append(_call(value, NONE, arrival_ns, (), UNKNOWN_THINK_NS))
            tokens.append(_token_ids(value))
            continue
        after: tuple[int, ...] = ()
        think_ns = 0
        for sub in value["sub_requests"].items():
            count_unknown(sub, _SUB_KEYS, source.unknown_keys)
            arrival_ns += think_ns
            calls.append(_call(sub, num_sessions, arrival_ns, after, think_ns))
            tokens.append(_token_ids(sub))
            after = (len(calls) - 1,)
            tool = sub.get("tool_duration_ns")
            think_ns = tool.whole_ns(1, "whole nanoseconds") if tool else 0
        num_sessions += 1
    if any(call.after for call in calls):
        source.notes.append(LATER_CALLS)
    content = content_of_pieces(streams_of_tokens(tokens)) if any(map(len, tokens)) else None
    yield from chunk_of_calls(source.path, calls, content)


def _call(
    value: JsonValue, session: int, arrival_ns: int, after: tuple[int, ...], think_ns: int
) -> Call:
    return Call(
        session=session,
        arrival_ns=arrival_ns,
        num_prompt_tokens=value["input_toks"].tokens(),
        num_output_tokens=value["output_toks"].tokens(),
        after=after,
        think_ns=think_ns,
    )


def _token_ids(value: JsonValue) -> bytes:
    """Packed ids of the prompt and, behind them, of the output; as far as they are given."""
    ids: list[int] = []
    for key, length in zip(_IDS, ("input_toks", "output_toks"), strict=True):
        given = value.get(key)
        if given is None:
            break
        if len(given.ids(bits=32)) != value[length].value:
            given.fail(f"has {len(given.value)} ids; {length} is {value[length].value}")
        ids += given.value
    return packed(ids)
