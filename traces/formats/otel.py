"""OpenTelemetry spans of LLM calls, with the attributes of the GenAI conventions.

Source: opentelemetry.io/docs/specs/semconv/gen-ai, and the JSON of OTLP; also the flat objects with
`spans` that github.com/kubernetes-sigs/inference-perf replays. A file is one document or one in
each line; a folder may hold many. Other spans are left out, as are calls that failed.

Lengths are `gen_ai.usage.*`, outputs shared out among `gen_ai.request.choice.count`. Without them,
and for what prompts hold, the messages are tokenized one by one with the tokenizer that the user
names. A call waits for the calls of its session that had ended when it started, and that no other of
these had waited for: chains, forks and joins.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from operator import attrgetter

from ..trace import TraceChunk
from .calls import Call, chunk_of_calls, content_of_pieces
from .interval_waits import waits_of_intervals
from .json_documents import documents, json_files
from .json_head import head_keys
from .otel_spans import SpanCall, read_span, spans_of
from .source import Head, Source, read_head
from .token_streams import packed, streams_of_tokens
from .tokenizer import load_tokenizer

SHAPE = "JSON with spans or resourceSpans that have gen_ai attributes, or a folder of such files"
_LISTS = frozenset(("spans", "resourceSpans"))
_CACHED_MESSAGES = 1 << 16
_NOTES = (
    "messages are tokenized one by one, without a chat template",
    "who waited for whom follows from when calls started and ended",
    "output tokens of a call with several choices are those of all; each choice gets an equal part, rounded up",
)


def recognises(head: Head) -> bool:
    if head.is_folder:
        return any(recognises(read_head(path)) for path in json_files(head.path))
    return not _LISTS.isdisjoint(head_keys(head))


def read(source: Source) -> Iterator[TraceChunk]:
    tokenize = None
    if source.options.tokenizer is not None:
        # A conversation's messages come again with each of its calls.
        tokenize = lru_cache(_CACHED_MESSAGES)(load_tokenizer(source))
        source.notes.append(_NOTES[0])
    source.notes.append(_NOTES[1])
    sessions: defaultdict[str, list[SpanCall]] = defaultdict(list)
    for document in documents(source, recognises):
        for span in spans_of(document):
            call_of_span = read_span(span, source, tokenize)
            if call_of_span is not None:
                sessions[call_of_span.session].append(call_of_span)
    calls: list[Call] = []
    sequences: list[bytes] = []
    for number, of_session in enumerate(sessions.values()):
        of_session.sort(key=attrgetter("start_ns"))
        first = len(calls)
        waits = waits_of_intervals([(call.start_ns, call.end_ns) for call in of_session])
        for call, (awaited, think_ns) in zip(of_session, waits, strict=True):
            calls.append(
                Call(
                    session=number,
                    arrival_ns=call.start_ns,
                    num_prompt_tokens=call.num_prompt_tokens,
                    num_output_tokens=call.num_output_tokens,
                    after=[first + other for other in awaited],
                    think_ns=think_ns,
                    max_tokens=call.max_tokens,
                    num_samples=call.num_samples,
                )
            )
            sequences.append(packed(call.token_ids))
    if any(call.num_samples > 1 for call in calls):
        source.notes.append(_NOTES[2])
    content = content_of_pieces(streams_of_tokens(sequences)) if tokenize else None
    yield from chunk_of_calls(source.path, calls, content)
