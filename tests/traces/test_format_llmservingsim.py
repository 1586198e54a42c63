"""LLMServingSim workloads: nanoseconds, lines in any order, sessions, token ids."""

import json
from pathlib import Path
from typing import Any

import pytest
from example_counts import fuzz_examples
from format_cases import (
    awaited,
    broken_bytes,
    broken_json,
    check_fuzzed,
    column,
    failure,
    hits,
    jsonl,
    lengths,
    read,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.traces import describe, open_trace

Json = dict[str, Any]


def flat(arrival_ns: Any, prompt: Any, output: Any, **more: Any) -> Json:
    return {"input_toks": prompt, "output_toks": output, "arrival_time_ns": arrival_ns} | more


def sub(prompt: Any, output: Any, tool_ns: Any = None, **more: Any) -> Json:
    tool = {} if tool_ns is None else {"tool_duration_ns": tool_ns}
    return {"input_toks": prompt, "output_toks": output} | tool | more


def agentic(arrival_ns: Any, *subs: Json) -> Json:
    return {"session_id": "s", "arrival_time_ns": arrival_ns, "sub_requests": list(subs)}


ROWS = [
    flat(500, 10, 2),
    agentic(100, sub(20, 3, 70), sub(25, 4, 0), sub(30, 5)),
    flat(140, 11, 1, input_tok_ids=list(range(11)), output_tok_ids=[7], extra=1),
]


def test_any_order_and_both_kinds(tmp_path: Path) -> None:
    trace = read(tmp_path / "mixed.jsonl", jsonl(*ROWS))
    assert trace.format == "llmservingsim"
    assert column(trace, "arrival_ns") == [0, 40, 70, 70, 400]
    assert lengths(trace) == [(20, 3), (11, 1), (25, 4), (30, 5), (10, 2)]
    assert awaited(trace) == [([], -1), ([], -1), ([0], 70), ([2], 0), ([], -1)]
    assert trace.unknown_keys == {"extra": 1}
    assert any("no recorded arrival" in note for note in trace.notes)


def test_requests_alone_need_no_sessions(tmp_path: Path) -> None:
    trace = read(tmp_path / "flat.jsonl", jsonl(flat(3, 4, 5), flat(1, 2, 3)))
    assert trace.chunks[0].sessions is None
    assert trace.chunks[0].content is None
    assert trace.notes == ()


def test_prompts_share_heads_to_the_token(tmp_path: Path) -> None:
    prompts = [
        [1, 2, 3, 4, 5],
        [1, 2, 3, 9, 9],
        [2, 3, 4, 5, 6],
        [1, 2, 3, 9, 8],
        [1, 2],
        [5, 1, 2],
    ]
    rows = [flat(i, len(ids), 1, input_tok_ids=ids) for i, ids in enumerate(prompts)]
    trace = read(tmp_path / "ids.jsonl", jsonl(*rows, flat(9, 5, 1)))
    assert hits(trace) == [0, 3, 0, 4, 2, 0, 0]
    assert hits(trace, 2) == [0, 1, 0, 2, 1, 0, 0]


def test_outputs_belong_to_what_a_later_prompt_repeats(tmp_path: Path) -> None:
    one = {"input_tok_ids": [1, 2, 3], "output_tok_ids": [4, 5]}
    two = {"input_tok_ids": [1, 2, 3, 4, 5, 6]}
    rows = [agentic(0, sub(3, 2, 5, **one), sub(6, 1, 0, **two))]
    # All but the last output token, whose KV is never computed.
    assert hits(read(tmp_path / "agent.jsonl", jsonl(*rows))) == [0, 4]


BROKEN: list[tuple[str, Any, tuple[str, ...]]] = [
    ("zero", flat(0, 0, 1), ("input_toks is 0; it must be a whole number of at least 1",)),
    ("negative", flat(0, 1, -1), ("output_toks is -1",)),
    ("fraction", flat(0, 1.5, 1), ("input_toks is 1.5",)),
    ("text", flat(0, "3", 1), ('input_toks is "3"',)),
    ("absurd", flat(0, 1, 10**8), ("output_toks is 100000000; the limit is 10,000,000",)),
    ("no output", {"arrival_time_ns": 0, "input_toks": 1}, ("key output_toks is missing",)),
    ("seconds", flat(0.5, 1, 1), ("arrival_time_ns is 0.5", "whole nanoseconds")),
    ("nan", flat(float("nan"), 1, 1), ("arrival_time_ns is NaN",)),
    ("early", flat(-1, 1, 1), ("arrival_time_ns is -1",)),
    ("late", flat(10**19, 1, 1), ("arrival_time_ns is 10000000000000000000", "limit")),
    ("ids", flat(0, 3, 1, input_tok_ids=[1, 2]), ("input_tok_ids has 2 ids; input_toks is 3",)),
    (
        "output ids",
        flat(0, 1, 1, input_tok_ids=[1], output_tok_ids=[1, 2]),
        ("output_tok_ids has 2 ids; output_toks is 1",),
    ),
    ("u64 ids", flat(0, 1, 1, input_tok_ids=[2**64 - 1]), ("input_tok_ids is", "below 2^32")),
    ("id text", flat(0, 1, 1, input_tok_ids=["a"]), ("input_tok_ids is", "list of ids")),
    ("subs", agentic(0) | {"sub_requests": 4}, ("sub_requests is 4; it must be a list",)),
    ("sub", agentic(0, 4), ("sub_requests[0] is 4; it must be an object",)),  # type: ignore[arg-type]
    ("sub zero", agentic(0, sub(1, 1), sub(1, 0)), ("sub_requests[1].output_toks is 0",)),
    ("tool", agentic(0, sub(1, 1, -1)), ("sub_requests[0].tool_duration_ns is -1",)),
    ("list", [1], ("not one complete JSON object",)),
    ("no arrival", {"input_toks": 1}, ("key arrival_time_ns is missing",)),
]


@pytest.mark.parametrize(("row", "words"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_broken_rows(tmp_path: Path, row: Any, words: tuple[str, ...]) -> None:
    message = failure(tmp_path / "w.jsonl", jsonl(ROWS[0], row) + jsonl(ROWS[1]))
    assert "w.jsonl line 2: " in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (jsonl(*ROWS)[:-20], "line 3: not one complete JSON object"),
        (jsonl(ROWS[0]).encode() + b"\n" + bytes(range(256)), "line 3: "),
        (jsonl(agentic(0)), "the trace is empty"),
        (
            jsonl(flat(0, 1, 1), flat(10**18, 1, 1), agentic(10**18, sub(1, 1, 9), sub(1, 1))),
            "apart",
        ),
    ],
    ids=["truncated", "junk", "no calls", "span"],
)
def test_broken_files(tmp_path: Path, content: str | bytes, words: str) -> None:
    assert words in failure(tmp_path / "w.jsonl", content)


def test_a_line_of_100_mb(tmp_path: Path) -> None:
    content = jsonl(ROWS[0]).encode() + b'{"a": "' + b"x" * 10**8
    assert "w.jsonl line 2: the line has more bytes than the limit of" in failure(
        tmp_path / "w.jsonl", content
    )


def test_marks_and_line_ends(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + jsonl(*ROWS).replace("\n", "\r\n\r\n").encode()
    trace = read(tmp_path / "crlf.jsonl", text)
    assert trace.num_requests == 5
    assert trace.skipped == {"blank line": 3}


@settings(max_examples=fuzz_examples())
@given(data=st.one_of(*map(broken_json, ROWS), broken_bytes(jsonl(*ROWS).encode())))
def test_fuzzed(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    check_fuzzed(tmp_path_factory.getbasetemp() / "fuzzed.jsonl", data, "llmservingsim")


def test_public_slices(shared_dir: Path) -> None:
    folder = shared_dir / "traces/llmservingsim"
    trace = open_trace(folder / "sharegpt-llama-3.1-8b-300-sps10.slice.jsonl")
    summary = describe(trace)
    assert (summary.format, summary.num_requests) == ("llmservingsim", 150)
    assert f"{150 / summary.span_s:.1f}" == "10.9"
    prompt, output = summary.prompt, summary.output
    assert [round(v) for v in (prompt.mean, prompt.p50, prompt.p99, prompt.max)] == [
        *(819, 707, 2765, 3452)
    ]
    assert [round(v) for v in (output.mean, output.p50, output.p99, output.max)] == [
        *(665, 684, 790, 822)
    ]
    tokens = sum(column(trace, "num_prompt_tokens"))
    assert f"{16 * sum(hits(trace, 16)) / tokens:.4f}" == "0.0473"
    assert f"{64 * sum(hits(trace, 64)) / tokens:.4f}" == "0.0458"


def test_public_example(shared_dir: Path) -> None:
    path = shared_dir / "traces/llmservingsim/example_trace.jsonl"
    trace = open_trace(path)
    summary = describe(trace)
    assert summary.num_requests == 10
    assert f"{10 / summary.span_s:.1f}" == "10.2"
    prompt, output = summary.prompt, summary.output
    assert [round(v) for v in (prompt.mean, prompt.p50, prompt.p99, prompt.max)] == [12, 14, 22, 22]
    assert [round(v) for v in (output.mean, output.p50, output.p99, output.max)] == [
        *(59, 66, 103, 104)
    ]
    assert sum(hits(trace, 16)) == 0
    # Every prompt compared with all before it, and with their outputs, token by token.
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    whole = [row["input_tok_ids"] + row["output_tok_ids"][:-1] for row in rows]
    assert hits(trace) == [
        max((_common(row["input_tok_ids"], other) for other in whole[:i]), default=0)
        for i, row in enumerate(rows)
    ]


def _common(one: list[int], other: list[int]) -> int:
    pairs = list(zip(one, other, strict=False))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
