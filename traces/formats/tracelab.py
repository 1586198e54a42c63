"""TraceLab rounds, JSONL: one LLM call of a coding session in each line.

Source: github.com/uw-syfi/TraceLab. There is no time stamp but those of `timing_events`: a round
starts with the last of its user messages and tool results and ends with its last event.
`input_tokens_total` is `prefix_tokens`, what the provider's cache had, plus `newly_append_tokens`.

What prompts hold is not recorded. A round begins as the one before it did for at least
`prefix_tokens` tokens. The provider's cache also misses what is not new, so a round that goes on
with a tool result begins with the whole prompt before it, unless it is shorter.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from operator import itemgetter

from ..sessions import UNKNOWN_THINK_NS
from ..trace import TraceChunk
from .calls import Call, chunk_of_calls, content_of_pieces
from .json_rows import json_rows
from .json_value import JsonValue
from .source import Head, Source
from .token_streams import Conversation, Piece

SHAPE = "JSONL with session_id, round_index, input_tokens_total, prefix_tokens, timing_events"
_KEYS = (
    "session_id",
    "round_index",
    "input_tokens_total",
    "prefix_tokens",
    "newly_append_tokens",
    "output_tokens",
    "timing_events",
)
_OTHER_KEYS = (
    "provider",
    "project",
    "round_id",
    "turn_id",
    "model",
    "reasoning_output_tokens",
    "tools",
    "claude_uncached_input_tokens",
    "claude_cache_creation_input_tokens",
    "claude_cache_read_input_tokens",
    "current_input_event_count",
    "current_user_message_count",
    "current_tool_result_count",
    "current_user_message_chars",
    "current_tool_result_chars",
    "current_input_chars",
    "first_input_event_type",
    "store",
    "trace_key",
)
_INPUT_EVENTS = ("user_message", "tool_result")
_MAX_ROUNDS = 10**9
_NO_OUTPUT = "round without output tokens"
_NO_EVENTS = "round without timing events"


@dataclass(slots=True)
class _Round:
    place: str
    start_ns: int
    end_ns: int
    is_tool_result: bool
    num_prompt_tokens: int
    num_prefix_tokens: int
    num_output_tokens: int


def recognises(head: Head) -> bool:
    return head.has_keys(*_KEYS)


def read(source: Source) -> Iterator[TraceChunk]:
    sessions: defaultdict[str, dict[int, _Round]] = defaultdict(dict)
    for line, row in json_rows(source, _KEYS, _OTHER_KEYS):
        value = JsonValue(row, source.place(line))
        rounds, index = sessions[value["session_id"].name()], value["round_index"]
        if index.whole(0, _MAX_ROUNDS) in rounds:
            index.fail(f"is {index.value} as at {rounds[index.value].place}")
        this = _round(value, source)
        if this is not None:
            rounds[index.value] = this
    calls: list[Call] = []
    pieces: list[list[Piece]] = []
    for session, rounds in enumerate(filter(None, sessions.values())):
        _add_session(session, [rounds[index] for index in sorted(rounds)], calls, pieces)
    num_reported = sum(this.num_prefix_tokens for of in sessions.values() for this in of.values())
    source.notes.append(
        f"the provider's cache had {num_reported:,} prompt tokens, which prompts share at least; a"
        " round after a tool result shares all of the prompt before it; more is not recorded"
    )
    yield from chunk_of_calls(source.path, calls, content_of_pieces(pieces))


def _add_session(
    session: int, rounds: list[_Round], calls: list[Call], pieces: list[list[Piece]]
) -> None:
    conversation = Conversation()
    before = None
    for this in rounds:
        num_shared = this.num_prefix_tokens
        if before and this.is_tool_result and this.num_prompt_tokens >= before.num_prompt_tokens:
            num_shared = max(num_shared, before.num_prompt_tokens)
        pieces.append(
            conversation.say(
                min(num_shared, this.num_prompt_tokens),
                this.num_prompt_tokens + this.num_output_tokens,
                new_stream=len(calls),
            )
        )
        calls.append(
            Call(
                session=session,
                arrival_ns=this.start_ns,
                num_prompt_tokens=this.num_prompt_tokens,
                num_output_tokens=this.num_output_tokens,
                after=(len(calls) - 1,) if before else (),
                think_ns=max(0, this.start_ns - before.end_ns) if before else UNKNOWN_THINK_NS,
            )
        )
        before = this


def _round(value: JsonValue, source: Source) -> _Round | None:
    """None, and counted, if it has no output or no time."""
    total = value["input_tokens_total"]
    prefix, new = value["prefix_tokens"], value["newly_append_tokens"]
    if total.tokens() != prefix.tokens(least=0) + new.tokens(least=0):
        total.fail(f"is {total.value}, not prefix + new tokens, {prefix.value} + {new.value}")
    if value["output_tokens"].tokens(least=0) == 0:
        source.skipped[_NO_OUTPUT] += 1
        return None
    events = [
        (event["event_type"].text() in _INPUT_EVENTS, event["timestamp"].date_ns(), event)
        for event in value["timing_events"].items()
    ]
    if not events:
        source.skipped[_NO_EVENTS] += 1
        return None
    inputs = list(takewhile(itemgetter(0), events)) or events[:1]
    return _Round(
        place=value.place,
        start_ns=max(time_ns for _, time_ns, _ in inputs),
        end_ns=max(time_ns for _, time_ns, _ in events),
        is_tool_result=inputs[0][2]["event_type"].value == "tool_result",
        num_prompt_tokens=total.value,
        num_prefix_tokens=prefix.value,
        num_output_tokens=value["output_tokens"].value,
    )
