"""OpenTelemetry spans: which are LLM calls, who waited for whom, what prompts share."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import word_tokenizer
from example_counts import examples, fuzz_examples
from format_cases import (
    S,
    awaited,
    broken_bytes,
    broken_json,
    check_fuzzed,
    column,
    failure,
    hits,
    lengths,
    read,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from otel_cases import Json, messages, span, used

from kvtwin.traces import Trace, open_trace
from kvtwin.traces.formats.interval_waits import waits_of_intervals
from kvtwin.traces.formats.source import ReadOptions

# One call, two in parallel after it, one after both.
FORKED = {
    "trace_id": "t",
    "spans": [
        used("06.0", "08.0", 40, 4),
        used("00.5", "02.0", 10, 1, request__max_tokens=500, request__choice__count=2),
        used("02.5", "05.0", 20, 2),
        used("03.0", "05.5", 30, 3),
        {"name": "tool", "attributes": {"gen_ai.operation.name": "execute_tool"}},
        used("09.0", "09.5", 1, 1) | {"status": {"code": 2, "message": "limit"}, "note": 1},
    ],
}


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return word_tokenizer.install(tmp_path, monkeypatch)


def test_calls_with_usage_need_no_tokenizer(tmp_path: Path) -> None:
    trace = read(tmp_path / "spans.json", FORKED)
    assert trace.format == "otel"
    assert column(trace, "arrival_ns") == [0, 2 * S, 2.5 * S, 5.5 * S]
    assert lengths(trace) == [(10, 1), (20, 2), (30, 3), (40, 4)]
    assert column(trace, "max_tokens") == [500, -1, -1, -1]
    assert awaited(trace) == [([], -1), ([0], S // 2), ([0], S), ([1, 2], S // 2)]
    assert trace.skipped == {"span that is not an LLM call": 1, "failed call": 1}
    assert trace.unknown_keys == {"note": 1}
    assert trace.chunks[0].content is None


def test_a_call_is_joined_once(tmp_path: Path) -> None:
    """Two calls follow two: both come after the later one, and the first waits for the other too."""
    spans = [used("01", "03", 1, 1), used("02", "04", 2, 1), used("05", "09", 3, 1)]
    trace = read(tmp_path / "spans.json", {"spans": [*spans, used("06", "08", 4, 1)]})
    assert [rows for rows, _ in awaited(trace)] == [[], [], [0, 1], [1]]


def test_sessions(tmp_path: Path) -> None:
    """The conversation where it is named, else the trace."""
    spans = [
        used("01", "02", 1, 1, conversation__id="x"),
        used("03", "04", 2, 1, conversation__id="y"),
        used("05", "06", 3, 1, conversation__id="x"),
        used("07", "08", 4, 1),
    ]
    trace = read(tmp_path / "spans.json", {"spans": spans})
    assert [rows for rows, _ in awaited(trace)] == [[], [], [0], []]


def test_otlp(tmp_path: Path) -> None:
    """The same spans as the OTLP exporters write them, in lines, and with typed values."""

    def typed(value: Any) -> Json:
        if isinstance(value, str):
            return {"stringValue": value}
        return {"intValue": str(value)}

    def otlp(each: Json) -> Json:
        pairs = [{"key": k, "value": typed(v)} for k, v in each["attributes"].items()]
        nanos = {
            f"{which}TimeUnixNano": str(round(float(each[f"{which}_time"][-4:]) * S) + 10**18)
            for which in ("start", "end")
            if f"{which}_time" in each
        }
        return {"traceId": "t", "attributes": pairs, "status": each.get("status", {})} | nanos

    lines = [
        json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [otlp(each)]}]}]})
        for each in FORKED["spans"]  # type: ignore[attr-defined]
    ]
    trace, same = read(tmp_path / "a.jsonl", "\n".join(lines)), read(tmp_path / "b.json", FORKED)
    assert lengths(trace) == lengths(same)
    assert awaited(trace) == awaited(same)
    assert column(trace, "arrival_ns") == column(same, "arrival_ns")
    assert column(trace, "max_tokens") == column(same, "max_tokens")
    assert trace.skipped == same.skipped


def test_messages_are_tokenized(tmp_path: Path, words: str) -> None:
    parts = [{"role": "user", "parts": [{"type": "text", "content": "a b"}]}]
    spans = [
        span("01", "02", input__messages=messages("a b c"), output__text="d e"),
        span("03", "04", input__messages=messages("a b c", "d e", "f"), output__text="g"),
        span("05", "06", system_instructions=messages("a b"), input__messages=messages("c x"),
             output__messages=json.dumps(parts)),
        span("07", "08", input__messages=messages("a"), output__text=""),
    ]  # fmt: skip
    trace = read(tmp_path / "spans.json", {"spans": spans}, tokenizer=words)
    assert lengths(trace) == [(3, 2), (6, 1), (4, 2)]
    assert hits(trace) == [0, 4, 3]
    assert trace.skipped == {"call without prompt or output tokens": 1}


def test_usage_counts_before_the_tokenizer(tmp_path: Path, words: str) -> None:
    """A server counts its chat template too; content is known as far as the messages go."""
    spans = [
        used("01", "02", 9, 2, input__messages=messages("a b c"), output__text="d e"),
        used("03", "04", 9, 2, input__messages=messages("a b c", "d e"), output__text="d e"),
        used("05", "06", 2, 2, input__messages=messages("a b c"), output__text="d e"),
    ]
    trace = read(tmp_path / "spans.json", {"spans": spans}, tokenizer=words)
    assert lengths(trace) == [(9, 2), (9, 2), (2, 2)]
    assert hits(trace) == [0, 3, 2]


def test_text_needs_a_tokenizer(tmp_path: Path) -> None:
    text = {"spans": [span("01", "02", input__messages=messages("a"), output__text="b")]}
    assert "holds text, which only a tokenizer" in failure(tmp_path / "spans.json", text)


def test_folder(tmp_path: Path) -> None:
    write(tmp_path / "a.json", FORKED)
    write(tmp_path / "b.json", {"spans": [used("04.0", "04.5", 7, 7) | {"trace_id": "u"}]})
    write(tmp_path / "c.json", {"other": 1})
    trace = open_trace(tmp_path)
    assert (trace.format, trace.num_requests) == ("otel", 5)
    assert [rows for rows, _ in awaited(trace)] == [[], [0], [0], [], [1, 2]]
    assert trace.skipped["file of the folder in another format"] == 1


def both(change: Json, **attributes: Any) -> Json:
    changed = used("01", "02", 3, 4) | change
    return {"spans": [changed | {"attributes": changed["attributes"] | attributes}]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"spans": 3}, "spans is 3; it must be a list"),
        ({"spans": [3]}, "spans[0] is 3; it must be an object"),
        ({"spans": [{}]}, "key attributes of spans[0] is missing"),
        ({"spans": [{"attributes": 4}]}, "spans[0].attributes is 4; it must be a list"),
        ({"spans": []}, "the trace is empty"),
        ({"resourceSpans": [{}]}, "key scopeSpans of resourceSpans[0] is missing"),
        (both({"start_time": None}), "spans[0].start_time is null; it must be text"),
        (both({"end_time": "soon"}), 'spans[0].end_time is "soon"; it must be a date like'),
        (both({"end_time": "2026-02-25T10:00:00Z"}), "spans[0] ends before it starts"),
        (both({"startTimeUnixNano": "-4"}), 'spans[0].startTimeUnixNano is "-4"; it must be'),
        (both({}, **{"gen_ai.usage.input_tokens": -1}), "input_tokens is -1; it must be a whole"),
        (both({}, **{"gen_ai.usage.input_tokens": "9"}), 'input_tokens is "9"'),
        (both({}, **{"gen_ai.request.max_tokens": 0}), "max_tokens is 0; it must be a whole"),
        (both({}, **{"gen_ai.conversation.id": 1.5}), "gen_ai.conversation.id is 1.5"),
        (both({"trace_id": []}), "spans[0].trace_id is []; it must be text"),
        ('{"spans": [', "line 1: cannot be read as JSON"),
        ('{"spans": [\n', "line 2: cannot be read as JSON"),
    ],
)
def test_broken_spans(tmp_path: Path, content: Any, message: str) -> None:
    assert message in failure(tmp_path / "spans.json", content)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not JSON", "input.messages is \"not JSON\"; it must be a list of messages as JSON text"),
        ('{"a": 1}', "it must be a list of messages as JSON text"),
        ("[3]", "gen_ai.input.messages[0] is 3; it must be an object"),
        ([{"content": 5}], "gen_ai.input.messages[0].content is 5; it must be a list"),
    ],
)  # fmt: skip
def test_broken_messages(tmp_path: Path, words: str, text: Any, message: str) -> None:
    content = {"spans": [span("01", "02", input__messages=text, output__text="b")]}
    assert message in failure(tmp_path / "spans.json", content, tokenizer=words)


def pair(key: str, kind: str, value: Any) -> Json:
    return {"key": key, "value": {kind: value}}


SAID = {"values": [pair("content", "stringValue", "a b")]}
OPERATION = pair("gen_ai.operation.name", "stringValue", "chat")
INPUT = pair("gen_ai.input.messages", "arrayValue", {"values": [{"kvlistValue": SAID}]})
OUTPUT = pair("gen_ai.output.text", "stringValue", "c")
OTLP_SPAN = {
    "startTimeUnixNano": "5",
    "endTimeUnixNano": 9,
    "attributes": [OPERATION, INPUT, OUTPUT],
}
TEXTS = {"resourceSpans": [{"scopeSpans": [{"spans": [OTLP_SPAN]}]}]}


def test_structured_values(tmp_path: Path, words: str) -> None:
    assert lengths(read(tmp_path / "spans.json", TEXTS, tokenizer=words)) == [(2, 1)]


@settings(max_examples=fuzz_examples())
@given(
    data=st.one_of(
        *map(broken_json, (FORKED, TEXTS)),
        *(broken_bytes(json.dumps(content).encode()) for content in (FORKED, TEXTS)),
    )
)
def test_fuzzed(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        named = word_tokenizer.install(folder, patch)
        check_fuzzed(folder / "fuzzed.json", data, "otel", tokenizer=named)


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), max_size=9))
def test_waits_are_the_last_calls_that_nobody_waited_for(spans: list[tuple[int, int]]) -> None:
    """Against the definition: one waits for those that had ended, if no other of them came between."""
    times = sorted((start, start + length) for start, length in spans)
    for i, (found, think) in enumerate(waits_of_intervals(times)):
        start = times[i][0]
        ended = [j for j in range(i) if times[j][1] <= start]
        waited_for = {j for j, k in combinations(ended, 2) if times[k][0] >= times[j][1]}
        assert set(found) == set(ended) - waited_for
        if found:
            assert think == start - times[found[0]][1] == start - max(times[j][1] for j in ended)


def test_public_examples(shared_dir: Path, words: str) -> None:
    folder = shared_dir / "traces/otel"
    chain = read_public(folder / "simple_chain.json", words)
    parallel = read_public(folder / "parallel_requests.json", words)
    assert (chain.num_requests, parallel.num_requests) == (3, 5)
    assert [rows for rows, _ in awaited(chain)] == [[], [0], [1]]
    assert [rows for rows, _ in awaited(parallel)] == [[], [0], [0], [1, 2], [3]]
    assert column(parallel, "arrival_ns") == [0, 2.5 * S, 3 * S, 6 * S, 8.5 * S]
    assert column(parallel, "max_tokens") == [500, 1000, 1000, 1500, 1500]
    # Each prompt of the chain begins with the prompt before it and its answer.
    prompts, outputs = zip(*lengths(chain), strict=True)
    assert hits(chain) == [0, prompts[0] + outputs[0] - 1, prompts[1] + outputs[1] - 1]
    # Words by hand: "What is the capital of France?"
    assert prompts[0] == 6
    assert "holds text" in failure(folder / "simple_chain.json")


def read_public(path: Path, named: str) -> Trace:
    return open_trace(path, options=ReadOptions(tokenizer=named))
