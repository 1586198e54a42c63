"""Detailed results of `vllm bench serve`: a list for each column, failures among them."""

import json
from pathlib import Path
from typing import Any

import pytest
from example_counts import fuzz_examples
from format_cases import (
    broken_bytes,
    broken_json,
    check_fuzzed,
    column,
    failure,
    lengths,
    read,
)
from hypothesis import given, settings
from hypothesis import strategies as st

RESULT: dict[str, Any] = {
    "date": "20260102-030405",
    "request_rate": "inf",
    "completed": 3,
    "input_lens": [100, 200, 50, 7, 8],
    "output_lens": [3, 2, 0, 4, 9],
    "ttfts": [0.1, 0.2, 0.0, 0.1, 0.1],
    "itls": [[0.05, 0.07], [0.1], [], [0.1], [0.1]],
    "start_times": [1234.123456789, 1234.5, 0.0, 1234.25, 0.0],
    "generated_texts": ["a", "b", "", "d", "e"],
    "errors": ["", None, "Connection reset", "", "late"],
}


def test_requests_in_order_of_their_starts(tmp_path: Path) -> None:
    trace = read(tmp_path / "result.json", RESULT)
    assert trace.format == "vllm-bench"
    assert lengths(trace) == [(100, 3), (7, 4), (200, 2)]
    # Decimal seconds of any clock, to the nanosecond.
    assert column(trace, "arrival_ns") == [0, 126_543_211, 376_543_211]
    assert trace.skipped == {"failed request": 2}
    assert trace.notes == ()


def test_results_without_start_times(tmp_path: Path) -> None:
    old = {key: RESULT[key] for key in ("output_lens", "input_lens")}
    trace = read(tmp_path / "result.json", json.dumps(old, indent=2))
    assert column(trace, "arrival_ns") == [0, 0, 0, 0]
    assert lengths(trace) == [(100, 3), (200, 2), (7, 4), (8, 9)]
    assert trace.notes == ("the file has no start_times: all requests arrive at once",)


def test_long_texts_before_the_lists(tmp_path: Path) -> None:
    """They are found by their keys, also where quotes and braces stand in a text."""
    texts = ['a "quoted" {"input_lens": [1]} \\', "{" * 1000] * 100
    content = json.dumps({"generated_texts": texts} | RESULT, indent=1)
    assert read(tmp_path / "result.json", content).num_requests == 3


def test_keys_of_something_inside_do_not_count(tmp_path: Path) -> None:
    content = json.dumps({"runs": [RESULT], "note": RESULT}, indent=1)
    assert "not one complete JSON object" in failure(tmp_path / "result.json", content)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input_lens": [1]}, "output_lens has 5 entries; input_lens has 1"),
        ({"start_times": [1.0]}, "start_times has 1 entries; input_lens has 5"),
        ({"errors": 3}, "errors is 3; it must be a list"),
        ({"input_lens": [0, 1, 1, 1, 1]}, "input_lens[0] is 0; it must be a whole number"),
        ({"output_lens": [1, -1, 1, 1, 1]}, "output_lens[1] is -1"),
        ({"output_lens": [1, "2", 1, 1, 1]}, 'output_lens[1] is "2"'),
        ({"start_times": [float("inf"), 1, 1, 1, 1]}, "start_times[0] is Infinity"),
        ({"start_times": [-1, 1, 1, 1, 1]}, "start_times[0] is -1"),
        ({"errors": ["", 5, "", "", ""]}, "errors[1] is 5; it must be text"),
        ({"input_lens": [], "output_lens": [], "start_times": [], "errors": []}, "is empty"),
        ({"output_lens": [0, 0, 0, 0, 0]}, "is empty, there are no rows; left out: 5 x failed"),
    ],
)
def test_broken_results(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    assert words in failure(tmp_path / "result.json", RESULT | change)


def test_broken_files(tmp_path: Path) -> None:
    truncated = json.dumps(RESULT, indent=1)[:-30]
    line = truncated.count("\n") + 1
    assert f" line {line}: cannot be read as JSON" in failure(tmp_path / "r.json", truncated)
    assert "in no known format" in failure(tmp_path / "x.json", {"input_lens": [1]})


@settings(max_examples=fuzz_examples())
@given(data=st.one_of(broken_json(RESULT), broken_bytes(json.dumps(RESULT).encode())))
def test_fuzzed(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    check_fuzzed(tmp_path_factory.getbasetemp() / "fuzzed.json", data, "vllm-bench")
