"""One OpenTelemetry span as an LLM call. See `otel` for the formats."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..trace import UNKNOWN_MAX_TOKENS
from .checks import MAX_SAMPLES, parsed_json
from .json_value import JsonValue, count_unknown
from .messages import message_text
from .source import Source
from .tokenizer import load_tokenizer

_OPERATIONS = ("chat", "text_completion", "generate_content")
_SESSION_KEYS = ("gen_ai.conversation.id", "session.id", "exgentic.session.id")
_PROMPT_COUNTS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT_COUNTS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_PROMPT_TEXTS = ("gen_ai.system_instructions", "gen_ai.input.messages")
_OUTPUT_MESSAGES, _OUTPUT_TEXT = "gen_ai.output.messages", "gen_ai.output.text"
_KEYS = frozenset(
    [
        "attributes",
        "status",
        "trace_id",
        "span_id",
        "parent_span_id",
        "name",
        "kind",
        "start_time",
        "end_time",
        "resource_attributes",
        "events",
        "links",
        "traceId",
        "spanId",
        "parentSpanId",
        "traceState",
        "flags",
        "startTimeUnixNano",
        "endTimeUnixNano",
        "droppedAttributesCount",
        "droppedEventsCount",
        "droppedLinksCount",
    ]
)
_ERRORS = (2, "STATUS_CODE_ERROR")
_OTHER = "span that is not an LLM call"
_FAILED = "failed call"
_NO_TOKENS = "call without prompt or output tokens"

TokenIds = Callable[[str], list[int]]


@dataclass(slots=True)
class SpanCall:
    """An LLM call. Times are ns since 1970."""

    session: str
    start_ns: int
    end_ns: int
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int
    num_samples: int
    token_ids: list[int]  # of its messages, from the first on, as far as they are known


def spans_of(document: JsonValue) -> Iterator[JsonValue]:
    """The spans of a document, in either shape."""
    if "spans" in document.object():
        yield from document["spans"].items()
        return
    for resource in document["resourceSpans"].items():
        for scope in resource["scopeSpans"].items():
            yield from scope["spans"].items()


def read_span(span: JsonValue, source: Source, tokenize: TokenIds | None) -> SpanCall | None:
    """The call of a span. None, and counted, if it is none, or failed, or has no tokens."""
    count_unknown(span, _KEYS, source.unknown_keys)
    attributes = _attributes(span)
    operation = attributes.get("gen_ai.operation.name")
    if operation is None or operation.value not in _OPERATIONS:
        source.skipped[_OTHER] += 1
        return None
    status = span.get("status")
    if status and (code := status.get("code")) and code.value in _ERRORS:
        source.skipped[_FAILED] += 1
        return None
    prompt = _first(attributes, _PROMPT_COUNTS)
    output = _first(attributes, _OUTPUT_COUNTS)
    if tokenize is None and (prompt is None or output is None):
        tokenize = load_tokenizer(source)
    prompt_ids, output_ids = _token_ids(attributes, tokenize) if tokenize else ([], [])
    num_prompt_tokens = len(prompt_ids) if prompt is None else prompt.tokens(least=0)
    num_output_tokens = len(output_ids) if output is None else output.tokens(least=0)
    if num_prompt_tokens == 0 or num_output_tokens == 0:
        source.skipped[_NO_TOKENS] += 1
        return None
    start_ns, end_ns = _time_ns(span, "start"), _time_ns(span, "end")
    if end_ns < start_ns:
        span.fail("ends before it starts")
    choices = attributes.get("gen_ai.request.choice.count")
    num_samples = choices.whole(1, MAX_SAMPLES) if choices else 1
    # Usage counts the tokens of all choices together.
    num_output_tokens = -(-num_output_tokens // num_samples)
    # A count of the server's includes its chat template; then it is not known where the output is.
    if len(prompt_ids) == num_prompt_tokens and num_samples == 1:
        prompt_ids = prompt_ids + output_ids[:num_output_tokens]
    limit = attributes.get("gen_ai.request.max_tokens")
    session = _first(attributes, _SESSION_KEYS) or span.get("trace_id") or span.get("traceId")
    return SpanCall(
        session=session.name() if session else "",
        start_ns=start_ns,
        end_ns=end_ns,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
        max_tokens=limit.tokens() if limit else UNKNOWN_MAX_TOKENS,
        num_samples=num_samples,
        token_ids=prompt_ids[: num_prompt_tokens + num_output_tokens],
    )


def _token_ids(
    attributes: Mapping[str, JsonValue], tokenize: TokenIds
) -> tuple[list[int], list[int]]:
    """Of the prompt and of the output."""
    prompts = [attributes[key] for key in _PROMPT_TEXTS if key in attributes]
    prompt = [i for value in prompts for text in _texts(value) for i in tokenize(text)]
    if _OUTPUT_MESSAGES in attributes:
        return prompt, [i for text in _texts(attributes[_OUTPUT_MESSAGES]) for i in tokenize(text)]
    said = attributes.get(_OUTPUT_TEXT)
    return prompt, tokenize(said.text()) if said else []


def _texts(messages: JsonValue) -> list[str]:
    """The text of each message of a list, which may itself be text that holds JSON."""
    if type(messages.value) is str:
        value = parsed_json(messages.value.encode(errors="replace"))
        if type(value) is not list:
            messages.wrong("a list of messages as JSON text")
        messages = JsonValue(value, messages.place, messages.parent, messages.key)
    return [message_text(message) for message in messages.items()]


def _attributes(span: JsonValue) -> dict[str, JsonValue]:
    """By name, without those that are null. OTLP has pairs whose values name their type."""
    given = span["attributes"]
    if type(given.value) is dict:
        return {key: given[key] for key, value in given.value.items() if value is not None}
    pairs = {pair["key"].text(): pair["value"] for pair in given.items()}
    plain = {
        name: JsonValue(_plain(value), value.place, value.parent, value.key)
        for name, value in pairs.items()
    }
    return {name: value for name, value in plain.items() if value.value is not None}


def _plain(typed: JsonValue) -> Any:
    """The value of an OTLP AnyValue, of which JSON writes integers as text."""
    for kind, value in typed.object().items():
        if kind == "intValue" and type(value) is str and value.isdecimal() and len(value) < 20:
            return int(value)
        if kind == "arrayValue":
            values = typed[kind].get("values")
            return [_plain(item) for item in values.items()] if values else []
        if kind == "kvlistValue":
            pairs = typed[kind].get("values")
            if pairs is None:
                return {}
            return {pair["key"].text(): _plain(pair["value"]) for pair in pairs.items()}
        return value
    return None


def _time_ns(span: JsonValue, which: str) -> int:
    """Start or end: a date, or, in OTLP, nanoseconds since 1970 as text or number."""
    nanos = span.get(f"{which}TimeUnixNano")
    if nanos is None:
        return span[f"{which}_time"].date_ns()
    text = nanos.name()
    if not (text.isdecimal() and text.isascii() and len(text) < 20):
        nanos.wrong("a whole number of nanoseconds since 1970")
    return int(text)


def _first(attributes: Mapping[str, JsonValue], keys: tuple[str, ...]) -> JsonValue | None:
    return next((attributes[key] for key in keys if key in attributes), None)
